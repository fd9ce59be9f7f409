// The language: what the person chose here, else what the browser asks for.
import { en } from './texts/en';
import { ko } from './texts/ko';

export type Texts = typeof en;
type Language = 'en' | 'ko';

const KEY = 'skiff.language';

function chosen(): Language {
    const kept = localStorage.getItem(KEY) ?? navigator.language;
    return kept.startsWith('ko') ? 'ko' : 'en';
}

export const language: Language = chosen();
export const text: Texts = language === 'ko' ? ko : en;
document.documentElement.lang = language;

export function choose(other: Language): void {
    localStorage.setItem(KEY, other);
    location.reload();
}

/** Puts values where a text has `{0}`, `{1}` … */
export function filled(pattern: string, ...values: (string | number)[]): string {
    return pattern.replace(/\{(\d)\}/g, (_all, digit) => String(values[Number(digit)] ?? ''));
}
