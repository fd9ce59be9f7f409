// A link's one-time code, with or without a session before it.
import { choose, filled, language, text } from './texts';

export const headers = { 'x-skiff-ui': '1', 'content-type': 'application/json' };

export function element<K extends keyof HTMLElementTagNameMap>(
    name: K,
    properties: Partial<HTMLElementTagNameMap[K]>,
    ...children: Node[]
): HTMLElementTagNameMap[K] {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
}

/** The code in the address, if a link has led here. */
export function code(): string | null {
    return new URLSearchParams(location.hash.slice(1)).get('code');
}

/** Logs in; else the reason for people, `refused` for a credential that is good for nothing. */
export async function login(body: { code: string } | { token: string }, refused: string): Promise<string> {
    const options = { method: 'POST', headers, body: JSON.stringify(body) };
    const answer = await fetch('/ui/login', options).catch(() => undefined);
    if (answer?.ok) return '';
    if (answer?.status === 401) return refused;
    return answer?.status === 429 ? text.login.many : text.login.unanswered;
}

export function frame(page: HTMLElement, ...children: Node[]): void {
    const icon = element('img', { src: '/ui/icon.svg', alt: '', width: 48, height: 48 });
    const title = element('h1', { textContent: text.login.title });
    const other = element('button', { className: 'plain', type: 'button', textContent: text.other });
    other.addEventListener('click', () => choose(language === 'ko' ? 'en' : 'ko'));
    page.replaceChildren(element('div', { className: 'login' }, icon, title, ...children, other));
}

/** The server answers the same address with the page itself now. */
export function enter(): void {
    history.replaceState(null, '', '/ui/');
    location.reload();
}

/**
 * Asks before a link's code is used: any other site can open a link to here, which would make the browser act as the user who
 * made that link. The button has no focus, so that no key which is pressed elsewhere reaches it.
 */
export function confirm(page: HTMLElement, code: string, user: string, failed: (failure: string) => void): void {
    const button = element('button', { className: 'primary', type: 'button', textContent: text.login.enter });
    button.addEventListener('click', async () => {
        button.disabled = true;
        // It is of no use to whoever finds it in the history later, but it need not stand there.
        history.replaceState(null, '', '/ui/');
        const failure = await login({ code }, text.login.used);
        if (failure) failed(failure);
        else enter();
    });
    const buttons = element('p', {}, button);
    const told: Node[] = [element('p', { textContent: text.login.link })];
    if (user) {
        const stay = element('button', { type: 'button', textContent: filled(text.login.stay, user) });
        stay.addEventListener('click', enter);
        buttons.append(' ', stay);
        told.unshift(element('p', { textContent: filled(text.login.open, user) }));
    }
    frame(page, ...told, buttons);
}
