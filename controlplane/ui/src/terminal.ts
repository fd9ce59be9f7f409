// A terminal in the page: draws a screen, and tells a program in a container what is typed. The protocol is that of
// `kubectl exec`: a channel's number before each piece (staging/src/k8s.io/apimachinery/pkg/util/remotecommand/constants.go).
import { color, Screen, type Style } from './screen';

const [INPUT, OUTPUT, ERRORS, STATUS, RESIZE] = [0, 1, 2, 3, 4];
const LINE = 17;
/** Bytes that may wait to be sent; what is pasted beyond that is cut. */
const MOST = 1 << 20;

export interface Session {
    close(): void;
}

/** Runs a command within `box` until it ends; `ended` is told how. */
export function session(box: HTMLElement, path: string, label: string, ended: (how: string) => void): Session {
    const lines = document.createElement('div');
    lines.className = 'screen';
    lines.setAttribute('aria-hidden', 'true');
    const input = document.createElement('textarea');
    input.setAttribute('aria-label', label);
    input.autocapitalize = 'off';
    input.spellcheck = false;
    box.replaceChildren(lines, input);

    const screen = new Screen(...size(box));
    const socket = new WebSocket(`wss://${location.host}${path}`, ['v5.channel.k8s.io']);
    socket.binaryType = 'arraybuffer';
    const decoder = new TextDecoder();
    let told = '';
    let frame = 0;

    const send = (channel: number, text: string) => {
        const bytes = new TextEncoder().encode(text);
        if (socket.readyState !== WebSocket.OPEN || socket.bufferedAmount + bytes.length > MOST) return;
        const message = new Uint8Array(bytes.length + 1);
        message[0] = channel;
        message.set(bytes, 1);
        socket.send(message);
    };
    const draw = () => {
        frame ||= requestAnimationFrame(() => {
            frame = 0;
            paint(screen, lines, input);
        });
    };
    const fit = () => {
        const [columns, rows] = size(box);
        screen.resize(columns, rows);
        send(RESIZE, JSON.stringify({ Width: columns, Height: rows }));
        draw();
    };
    const watcher = new ResizeObserver(fit);

    socket.onopen = () => {
        watcher.observe(box);
        fit();
        input.focus();
    };
    socket.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => {
        const bytes = new Uint8Array(data);
        const rest = bytes.subarray(1);
        if (bytes[0] === OUTPUT || bytes[0] === ERRORS) {
            screen.write(decoder.decode(rest, { stream: true }));
            for (const answer of screen.answers.splice(0)) send(INPUT, answer);
            draw();
        } else if (bytes[0] === STATUS) {
            const status = JSON.parse(new TextDecoder().decode(rest));
            told = status.status === 'Success' ? '' : (status.message ?? '');
        }
    };
    socket.onclose = ({ code, reason }) => {
        watcher.disconnect();
        screen.cursor = false;
        draw();
        ended(told || reason || (code === 1006 ? 'WebSocket 1006' : ''));
    };

    input.addEventListener('keydown', (event) => {
        if (event.isComposing) return;
        if (event.key === 'Escape' && event.ctrlKey && event.shiftKey) {
            input.blur();
            return;
        }
        const keys = typed(event, screen);
        if (keys === undefined) return;
        event.preventDefault();
        send(INPUT, keys);
    });
    // Letters come this way, also those that an input method composes.
    input.addEventListener('input', (event) => {
        if ((event as InputEvent).isComposing) return;
        send(INPUT, input.value);
        input.value = '';
    });
    input.addEventListener('compositionend', () => {
        send(INPUT, input.value);
        input.value = '';
    });
    input.addEventListener('paste', (event) => {
        event.preventDefault();
        const text = (event.clipboardData?.getData('text') ?? '').replace(/\r?\n/g, '\r');
        // A program that asks for these marks is not to take what is pasted for commands.
        const clean = text.replaceAll('\x1b', '');
        send(INPUT, screen.bracketed ? `\x1b[200~${clean}\x1b[201~` : clean);
    });
    const focus = () => {
        if (!getSelection()?.toString()) input.focus();
    };
    box.addEventListener('mouseup', focus);

    return {
        close() {
            box.removeEventListener('mouseup', focus);
            watcher.disconnect();
            cancelAnimationFrame(frame);
            socket.onclose = null;
            socket.close();
        },
    };
}

/** Columns and rows that fit. */
function size(box: HTMLElement): [number, number] {
    const probe = document.createElement('span');
    probe.textContent = 'M'.repeat(100);
    probe.style.visibility = 'hidden';
    box.append(probe);
    const one = probe.getBoundingClientRect().width / 100 || 8;
    probe.remove();
    const columns = Math.floor((box.clientWidth - 16) / one);
    const rows = Math.floor((box.clientHeight - 16) / LINE);
    return [Math.max(20, Math.min(400, columns)), Math.max(5, Math.min(200, rows))];
}

const KEYS: Record<string, string> = {
    Enter: '\r', Backspace: '\x7f', Tab: '\t', Escape: '\x1b', Delete: '\x1b[3~', Insert: '\x1b[2~', PageUp: '\x1b[5~',
    PageDown: '\x1b[6~', F1: '\x1bOP', F2: '\x1bOQ', F3: '\x1bOR', F4: '\x1bOS', F5: '\x1b[15~', F6: '\x1b[17~',
    F7: '\x1b[18~', F8: '\x1b[19~', F9: '\x1b[20~', F10: '\x1b[21~', F11: '\x1b[23~', F12: '\x1b[24~',
};
const ARROWS: Record<string, string> = { ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D', Home: 'H', End: 'F' };

/** What a key sends; nothing for those that the browser, or the input of letters, is to have. */
function typed(event: KeyboardEvent, screen: Screen): string | undefined {
    const arrow = ARROWS[event.key];
    if (arrow) return event.ctrlKey ? `\x1b[1;5${arrow}` : `\x1b${screen.application ? 'O' : '['}${arrow}`;
    if (event.metaKey || (event.ctrlKey && event.shiftKey)) return undefined;
    if (event.shiftKey && event.key === 'Tab') return '\x1b[Z';
    const key = KEYS[event.key];
    if (key) return key;
    if (event.ctrlKey && event.key.length === 1 && event.key !== 'v') {
        const code = event.key.toUpperCase().charCodeAt(0);
        if (code >= 63 && code <= 95) return String.fromCharCode(code & 31);
        return event.key === ' ' ? '\0' : undefined;
    }
    return event.altKey && event.key.length === 1 ? `\x1b${event.key}` : undefined;
}

/** Draws what is seen; each line is made of pieces of one style. */
function paint(screen: Screen, lines: HTMLElement, input: HTMLElement): void {
    while (lines.childElementCount > screen.rows) lines.lastElementChild?.remove();
    while (lines.childElementCount < screen.rows) lines.append(document.createElement('div'));
    screen.grid.forEach((line, row) => {
        const pieces: HTMLElement[] = [];
        let piece: HTMLElement | undefined;
        let before: Style | undefined;
        line.forEach(({ text, style }, column) => {
            const here = screen.cursor && row === screen.row && column === screen.column;
            if (!piece || style !== before || here || piece.className) {
                piece = document.createElement('span');
                if (here) piece.className = 'cursor';
                dress(piece, style);
                pieces.push(piece);
                before = style;
            }
            piece.append(text);
        });
        lines.children[row]?.replaceChildren(...pieces);
    });
    const cursor = lines.querySelector<HTMLElement>('.cursor');
    if (cursor) {
        input.style.top = `${cursor.offsetTop}px`;
        input.style.left = `${cursor.offsetLeft}px`;
    }
}

function dress(piece: HTMLElement, style: Style): void {
    const ink = style.ink === undefined ? undefined : color(style.ink);
    const ground = style.ground === undefined ? undefined : color(style.ground);
    const own = piece.style;
    if (style.inverse) {
        own.color = ground ?? '#10151b';
        own.background = ink ?? '#d7dee6';
    } else {
        if (ink) own.color = ink;
        if (ground) own.background = ground;
    }
    if (style.bold) own.fontWeight = '700';
    if (style.faint) own.opacity = '.7';
    if (style.italic) own.fontStyle = 'italic';
    if (style.underline) own.textDecoration = 'underline';
}
