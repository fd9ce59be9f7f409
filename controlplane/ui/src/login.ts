// The login: a link's one-time code, or a token that is pasted.
import { choose, language, text } from './texts';

const page = document.getElementById('login') as HTMLElement;
const headers = { 'x-skiff-ui': '1', 'content-type': 'application/json' };

function element<K extends keyof HTMLElementTagNameMap>(
    name: K,
    properties: Partial<HTMLElementTagNameMap[K]>,
    ...children: Node[]
): HTMLElementTagNameMap[K] {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
}

async function login(body: { code: string } | { token: string }): Promise<boolean> {
    const options = { method: 'POST', headers, body: JSON.stringify(body) };
    const answer = await fetch('/ui/login', options).catch(() => undefined);
    return answer?.ok ?? false;
}

function frame(...children: Node[]): void {
    const icon = element('img', { src: '/ui/icon.svg', alt: '', width: 48, height: 48 });
    const title = element('h1', { textContent: text.login.title });
    const other = element('button', { className: 'plain', type: 'button', textContent: text.other });
    other.addEventListener('click', () => choose(language === 'ko' ? 'en' : 'ko'));
    page.replaceChildren(element('div', { className: 'login' }, icon, title, ...children, other));
}

/**
 * Asks before a link's code is used: any other site can open a link to here, which would make the browser act as the user who
 * made that link. The button has no focus, so that no key which is pressed elsewhere reaches it.
 */
function confirm(code: string): void {
    const button = element('button', { className: 'primary', type: 'button', textContent: text.login.enter });
    button.addEventListener('click', async () => {
        button.disabled = true;
        // It is of no use to whoever finds it in the history later, but it need not stand there.
        history.replaceState(null, '', '/ui/');
        if (await login({ code })) enter();
        else show(text.login.used);
    });
    frame(element('p', { textContent: text.login.link }), element('p', {}, button));
}

function show(failure: string): void {
    const token = element('textarea', { id: 'token', rows: 4, autocomplete: 'off', spellcheck: false, required: true });
    const told = element('p', { className: 'failure', textContent: failure });
    told.setAttribute('role', 'alert');
    const form = element(
        'form',
        {},
        element('label', { htmlFor: 'token', textContent: text.login.token }),
        token,
        element('button', { className: 'primary', textContent: text.login.enter }),
    );
    form.addEventListener('submit', async (event) => {
        event.preventDefault();
        if (await login({ token: token.value.trim() })) enter();
        else told.textContent = text.login.refused;
    });
    const hint = element('p', { textContent: text.login.hint });
    hint.append(' ', element('code', { textContent: 'skiff ui' }));
    frame(hint, told, form);
    token.focus();
}

/** The server answers the same address with the page itself now. */
function enter(): void {
    history.replaceState(null, '', '/ui/');
    location.reload();
}

async function begin(): Promise<void> {
    const code = new URLSearchParams(location.hash.slice(1)).get('code');
    if (code) {
        confirm(code);
        return;
    }
    // A link from elsewhere comes without the cookie; this page's own request has it.
    const session = await fetch('/ui/session', { headers }).catch(() => undefined);
    if (session?.ok) location.reload();
    else show('');
}

void begin();
