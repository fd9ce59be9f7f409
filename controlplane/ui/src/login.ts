// The login: a link's one-time code, or a token that is pasted.
import { code, confirm, element, enter, frame, headers, login } from './link';
import { text } from './texts';

const page = document.getElementById('login') as HTMLElement;

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
        told.textContent = await login({ token: token.value.trim() }, text.login.refused);
        if (!told.textContent) enter();
    });
    const hint = element('p', { textContent: text.login.hint });
    hint.append(' ', element('code', { textContent: 'skiff ui' }));
    frame(page, hint, told, form);
    token.focus();
}

async function begin(): Promise<void> {
    // A link from elsewhere comes without the cookie; this page's own request has it.
    const session = await fetch('/ui/session', { headers }).catch(() => undefined);
    const own = code();
    if (session?.ok) location.reload();
    else if (own) confirm(page, own, '', show);
    else show('');
}

void begin();
