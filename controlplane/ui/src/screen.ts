// A terminal's screen: what a program writes (ECMA-48 as xterm speaks it, as far as shells, pagers, editors and `top` use it)
// becomes a grid of cells. Nothing is drawn and nothing is read from the world here.

export interface Style {
    /** Index of the palette of 256, `#rrggbb`, or nothing for the terminal's own. */
    ink?: number | string;
    ground?: number | string;
    bold?: boolean;
    faint?: boolean;
    italic?: boolean;
    underline?: boolean;
    inverse?: boolean;
}

/** Cells may be shared, and are replaced, never changed. */
interface Cell {
    readonly text: string;
    readonly style: Style;
}

const PLAIN: Style = {};
const HISTORY = 2000;
/** Parameters and characters of one sequence; longer ones are no sequences. */
const LONGEST = 256;

function blank(style: Style = PLAIN): Cell {
    return { text: ' ', style: style.ground === undefined ? PLAIN : { ground: style.ground } };
}

export class Screen {
    columns: number;
    rows: number;
    row = 0;
    column = 0;
    cursor = true;
    /** Keys of arrows are sent in another form then. */
    application = false;
    bracketed = false;
    /** Lines that have left the screen at its top. */
    history: Cell[][] = [];
    grid: Cell[][];
    #style: Style = PLAIN;
    #saved = { row: 0, column: 0, style: PLAIN };
    #other: Cell[][] | undefined;
    #top = 0;
    #bottom: number;
    #wrap = false;
    #sequence = '';
    /** Answers to the program's questions. */
    readonly answers: string[] = [];

    constructor(columns: number, rows: number) {
        this.columns = columns;
        this.rows = rows;
        this.#bottom = rows - 1;
        this.grid = this.#lines(rows);
    }

    #lines(count: number): Cell[][] {
        return Array.from({ length: count }, () => this.#line());
    }

    #line(): Cell[] {
        return new Array<Cell>(this.columns).fill(blank(this.#style));
    }

    resize(columns: number, rows: number): void {
        this.columns = columns;
        for (const grid of [this.grid, this.#other ?? []]) {
            for (const line of grid) {
                while (line.length < columns) line.push(blank());
                line.length = columns;
            }
            while (grid.length > rows) {
                const gone = grid.shift();
                if (gone && grid === this.grid && !this.#other) this.#remember(gone);
                if (grid === this.grid) this.row = Math.max(0, this.row - 1);
            }
            while (grid.length && grid.length < rows) grid.push(...this.#lines(1));
        }
        this.rows = rows;
        [this.#top, this.#bottom] = [0, rows - 1];
        this.row = Math.min(this.row, rows - 1);
        this.column = Math.min(this.column, columns - 1);
    }

    write(told: string): void {
        for (const character of told) {
            if (this.#sequence) this.#continue(character);
            else this.#one(character);
        }
    }

    #one(character: string): void {
        switch (character) {
            case '\x1b': this.#sequence = character; break;
            case '\n': case '\v': case '\f': this.#down(); break;
            case '\r': this.column = 0; this.#wrap = false; break;
            case '\b': this.column = Math.max(0, this.column - 1); this.#wrap = false; break;
            case '\t': this.column = Math.min(this.columns - 1, (this.column | 7) + 1); break;
            default: if (character >= ' ' && character !== '\x7f') this.#put(character);
        }
    }

    #put(character: string): void {
        const size = width(character);
        const line = this.grid[this.row]!;
        if (size === 0) {
            // A mark on the character before it; few of them are worth their room.
            const at = Math.max(0, this.column - 1);
            const { text, style } = line[at]!;
            if (text.length < 8) line[at] = { text: text + character, style };
            return;
        }
        if (this.#wrap || this.column + size > this.columns) {
            this.column = 0;
            this.#down();
        }
        const now = this.grid[this.row]!;
        now[this.column] = { text: character, style: this.#style };
        if (size === 2) now[this.column + 1] = { text: '', style: this.#style };
        this.column += size;
        this.#wrap = this.column >= this.columns;
        if (this.#wrap) this.column = this.columns - 1;
    }

    #down(): void {
        this.#wrap = false;
        if (this.row === this.#bottom) this.#scroll(1);
        else if (this.row < this.rows - 1) this.row += 1;
    }

    /** Moves the lines of the region up, or down for a negative number. */
    #scroll(count: number, from = this.#top): void {
        for (let left = Math.min(Math.abs(count), this.rows); left > 0; left -= 1) {
            if (count > 0) {
                const [gone] = this.grid.splice(from, 1);
                this.grid.splice(this.#bottom, 0, this.#line());
                if (gone && from === 0 && !this.#other) this.#remember(gone);
            } else {
                this.grid.splice(this.#bottom, 1);
                this.grid.splice(from, 0, this.#line());
            }
        }
    }

    #remember(line: Cell[]): void {
        this.history.push(line);
        if (this.history.length > HISTORY) this.history.shift();
    }

    #continue(character: string): void {
        // Another escape gives up what came before.
        this.#sequence = character === '\x1b' ? character : this.#sequence + character;
        const sequence = this.#sequence;
        const kind = sequence[1];
        if (kind === undefined) return;
        if (kind === '[') {
            if (sequence.length > 2 && character >= '@' && character <= '~') {
                this.#sequence = '';
                this.#control(sequence.slice(2, -1), character);
            } else if (sequence.length > LONGEST) this.#sequence = '';
        } else if (']PX^_'.includes(kind)) {
            // Titles and the like: read over, up to their end.
            if (character === '\x07' || (character === '\\' && sequence.length === 2)) this.#sequence = '';
            else if (sequence.length > LONGEST) this.#sequence = sequence.slice(0, 2);
        } else if ('()*+#%'.includes(kind)) {
            if (sequence.length > 2) this.#sequence = '';
        } else {
            this.#sequence = '';
            this.#escape(kind);
        }
    }

    #escape(kind: string): void {
        switch (kind) {
            case '7': this.#save(); break;
            case '8': this.#restore(); break;
            case 'D': this.#down(); break;
            case 'E': this.column = 0; this.#down(); break;
            case 'M':
                if (this.row === this.#top) this.#scroll(-1);
                else this.row = Math.max(0, this.row - 1);
                break;
            case 'c': this.#reset(); break;
        }
    }

    #reset(): void {
        this.#style = PLAIN;
        this.#other = undefined;
        [this.row, this.column, this.#top, this.#bottom] = [0, 0, 0, this.rows - 1];
        [this.cursor, this.application, this.bracketed] = [true, false, false];
        this.grid = this.#lines(this.rows);
    }

    #save(): void {
        this.#saved = { row: this.row, column: this.column, style: this.#style };
    }

    #restore(): void {
        this.row = Math.min(this.#saved.row, this.rows - 1);
        this.column = Math.min(this.#saved.column, this.columns - 1);
        this.#style = this.#saved.style;
    }

    #control(told: string, final: string): void {
        const secret = told.startsWith('?');
        if (!secret && /[<=>!$ ]/.test(told)) {
            return;
        }
        const numbers = told.replace('?', '').split(/[;:]/).map((number) => Math.min(9999, Number(number) || 0));
        const first = numbers[0] ?? 0;
        const count = Math.max(1, first);
        if (secret) {
            if (final === 'h' || final === 'l') for (const mode of numbers) this.#mode(mode, final === 'h');
            return;
        }
        this.#wrap = this.#wrap && final === 'm';
        const line = this.grid[this.row]!;
        switch (final) {
            case 'A': this.row = Math.max(this.row >= this.#top ? this.#top : 0, this.row - count); break;
            case 'B': case 'e': this.row = Math.min(this.row <= this.#bottom ? this.#bottom : this.rows - 1, this.row + count); break;
            case 'C': case 'a': this.column = Math.min(this.columns - 1, this.column + count); break;
            case 'D': this.column = Math.max(0, this.column - count); break;
            case 'E': this.row = Math.min(this.rows - 1, this.row + count); this.column = 0; break;
            case 'F': this.row = Math.max(0, this.row - count); this.column = 0; break;
            case 'G': case '`': this.column = Math.min(this.columns, count) - 1; break;
            case 'd': this.row = Math.min(this.rows, count) - 1; break;
            case 'H': case 'f':
                this.row = Math.min(this.rows, count) - 1;
                this.column = Math.min(this.columns, Math.max(1, numbers[1] ?? 1)) - 1;
                break;
            case 'J': this.#eraseScreen(first); break;
            case 'K': this.#eraseLine(first); break;
            case 'L': if (this.#within()) this.#scroll(-count, this.row); break;
            case 'M': if (this.#within()) this.#remove(count); break;
            case 'P': line.splice(this.column, count); this.#fill(line); break;
            case '@': line.splice(this.column, 0, ...Array.from({ length: Math.min(count, this.columns) }, () => blank(this.#style))); line.length = this.columns; break;
            case 'X': for (let at = this.column; at < Math.min(this.columns, this.column + count); at += 1) line[at] = blank(this.#style); break;
            case 'S': this.#scroll(count); break;
            case 'T': this.#scroll(-count); break;
            case 'm': this.#paint(told === '' ? [0] : numbers); break;
            case 'r': this.#region(first, numbers[1] ?? 0); break;
            case 's': this.#save(); break;
            case 'u': this.#restore(); break;
            case 'n': if (first === 6) this.answers.push(`\x1b[${this.row + 1};${this.column + 1}R`); break;
            case 'c': this.answers.push('\x1b[?6c'); break;
        }
    }

    #within(): boolean {
        return this.row >= this.#top && this.row <= this.#bottom;
    }

    /** Lines that a program deletes are no history. */
    #remove(count: number): void {
        for (let left = Math.min(count, this.rows); left > 0; left -= 1) {
            this.grid.splice(this.row, 1);
            this.grid.splice(this.#bottom, 0, this.#line());
        }
    }

    #fill(line: Cell[]): void {
        while (line.length < this.columns) line.push(blank(this.#style));
    }

    #region(top: number, bottom: number): void {
        const [from, to] = [Math.max(1, top) - 1, Math.min(this.rows, bottom || this.rows) - 1];
        if (from >= to) return;
        [this.#top, this.#bottom, this.row, this.column] = [from, to, 0, 0];
    }

    #mode(mode: number, on: boolean): void {
        if (mode === 1) this.application = on;
        else if (mode === 25) this.cursor = on;
        else if (mode === 2004) this.bracketed = on;
        else if (mode === 47 || mode === 1047 || mode === 1049) this.#alternate(on);
    }

    #alternate(on: boolean): void {
        if (on && !this.#other) {
            this.#save();
            this.#other = this.grid;
            this.grid = this.#lines(this.rows);
        } else if (!on && this.#other) {
            this.grid = this.#other;
            this.#other = undefined;
            this.#restore();
        }
        [this.#top, this.#bottom] = [0, this.rows - 1];
    }

    #eraseLine(how: number): void {
        const line = this.grid[this.row]!;
        const [from, to] = how === 0 ? [this.column, this.columns] : how === 1 ? [0, this.column + 1] : [0, this.columns];
        for (let at = from; at < Math.min(to, this.columns); at += 1) line[at] = blank(this.#style);
    }

    #eraseScreen(how: number): void {
        if (how === 3) {
            this.history = [];
            return;
        }
        if (how < 2) this.#eraseLine(how);
        const [from, to] = how === 0 ? [this.row + 1, this.rows] : how === 1 ? [0, this.row] : [0, this.rows];
        for (let at = from; at < to; at += 1) this.grid[at] = this.#line();
    }

    #paint(numbers: number[]): void {
        let style = { ...this.#style };
        for (let at = 0; at < numbers.length; at += 1) {
            const number = numbers[at]!;
            if (number === 0) style = {};
            else if (number === 1) style.bold = true;
            else if (number === 2) style.faint = true;
            else if (number === 3) style.italic = true;
            else if (number === 4) style.underline = true;
            else if (number === 7) style.inverse = true;
            else if (number === 22) style.bold = style.faint = false;
            else if (number === 23) style.italic = false;
            else if (number === 24) style.underline = false;
            else if (number === 27) style.inverse = false;
            else if (number >= 30 && number <= 37) style.ink = number - 30;
            else if (number >= 90 && number <= 97) style.ink = number - 82;
            else if (number >= 40 && number <= 47) style.ground = number - 40;
            else if (number >= 100 && number <= 107) style.ground = number - 92;
            else if (number === 39) delete style.ink;
            else if (number === 49) delete style.ground;
            else if (number === 38 || number === 48) {
                const [color, used] = extended(numbers.slice(at + 1));
                at += used;
                if (color !== undefined) style[number === 38 ? 'ink' : 'ground'] = color;
            }
        }
        this.#style = style;
    }
}

/** `5;N` of the palette or `2;R;G;B`, and how many numbers that was. */
function extended([kind, ...rest]: number[]): [number | string | undefined, number] {
    if (kind === 5) return [Math.min(255, rest[0] ?? 0), 2];
    if (kind !== 2) return [undefined, 1];
    const hex = rest.slice(0, 3).map((part) => Math.min(255, part).toString(16).padStart(2, '0'));
    return [`#${hex.join('')}`, 4];
}

/** Columns of a character: marks take none, those of East Asia two. */
function width(character: string): number {
    if (character < '\u0300') return 1;
    if (/^[\p{Mn}\p{Me}\p{Cf}]$/u.test(character)) return 0;
    return /^[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]$/u.test(
        character,
    )
        ? 2
        : 1;
}

const BASE = [
    '#1c2430', '#f87171', '#4ade80', '#fbbf24', '#60a5fa', '#c084fc', '#2dd4bf', '#d7dee6',
    '#7f8c9b', '#fca5a5', '#86efac', '#fde047', '#93c5fd', '#d8b4fe', '#5eead4', '#ffffff',
];

/** A color of the palette of 256 as CSS has it. */
export function color(told: number | string): string {
    if (typeof told === 'string') return told;
    if (told < 16) return BASE[told] ?? '#d7dee6';
    if (told >= 232) {
        const gray = (told - 232) * 10 + 8;
        return `rgb(${gray} ${gray} ${gray})`;
    }
    const level = (part: number) => (part ? part * 40 + 55 : 0);
    const index = told - 16;
    return `rgb(${level(Math.floor(index / 36))} ${level(Math.floor(index / 6) % 6)} ${level(index % 6)})`;
}
