// Dark or light: what the system says, until the person says otherwise.

const KEY = 'skiff.theme';

/** Shows what was chosen before. */
export function theme(): void {
    const kept = localStorage.getItem(KEY);
    if (kept) document.documentElement.dataset.theme = kept;
}

export function toggle(): void {
    const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    const now = document.documentElement.dataset.theme ?? system;
    const next = now === 'dark' ? 'light' : 'dark';
    localStorage.setItem(KEY, next);
    document.documentElement.dataset.theme = next;
}
