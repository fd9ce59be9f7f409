import { mount } from 'svelte';
import App from './App.svelte';
import { code, confirm, element, enter, frame, headers } from './link';
import { theme } from './theme';
import { filled, text } from './texts';

const page = document.getElementById('app') as HTMLElement;

/** Asks whether a link's user is to take the place of the one whose session is open. */
async function offer(own: string): Promise<void> {
    const session = await fetch('/ui/session', { headers }).catch(() => undefined);
    const user = session?.ok ? (await session.json()).user : '';
    page.className = 'alone';
    confirm(page, own, user, (failure) => {
        const told = element('p', { className: 'failure', textContent: failure });
        told.setAttribute('role', 'alert');
        const stay = element('button', { type: 'button', textContent: filled(text.login.stay, user) });
        stay.addEventListener('click', enter);
        frame(page, told, element('p', {}, stay));
    });
}

theme();
// A link that is pasted into an open page changes the fragment alone.
addEventListener('hashchange', () => code() && location.reload());
const own = code();
if (own) void offer(own);
else mount(App, { target: page });
