// The server writes the YAML; here it is only made shorter.

/** Leaves out the managers of fields, which are long and seldom looked for. */
export function readable(yaml: string): string {
    return without(yaml, ['managedFields']);
}

/** What a person may change: without what the server keeps by itself. */
export function editable(yaml: string): string {
    const kept = without(yaml, ['managedFields', 'creationTimestamp', 'generation', 'resourceVersion', 'uid', 'selfLink']);
    return withoutTop(kept, 'status');
}

/** Takes fields of `metadata` out, with everything below them. */
function without(yaml: string, fields: string[]): string {
    const kept: string[] = [];
    let inside = false;
    let skipping = false;
    for (const line of yaml.split('\n')) {
        if (/^\S/.test(line)) inside = line.startsWith('metadata:');
        const field = inside && /^ {2}([A-Za-z]+):/.exec(line)?.[1];
        if (field || /^\S/.test(line)) skipping = field ? fields.includes(field) : false;
        if (!skipping) kept.push(line);
    }
    return kept.join('\n');
}

function withoutTop(yaml: string, field: string): string {
    let skipping = false;
    const kept = yaml.split('\n').filter((line) => {
        if (/^[A-Za-z]/.test(line)) skipping = line.startsWith(`${field}:`);
        return !skipping;
    });
    return `${kept.join('\n').trimEnd()}\n`;
}

/** The objects of a text, each with what an address is made of. */
export function documents(yaml: string) {
    const parts = yaml.split(/^---.*$/m).filter((body) => /^[^#\s]/m.test(body));
    return parts.map((body) => {
        const top = (field: string) => new RegExp(`^${field}: *["']?([^\\s"'#]+)`, 'm').exec(body)?.[1] ?? '';
        const [, indent = '', rest = ''] = /^metadata:.*\n(?:\s*#.*\n)*( +)(.*(?:\n(?: .*)?$)*)/m.exec(body) ?? [];
        const own = (field: string) => new RegExp(`^${indent}${field}: *["']?([^\\s"'#]+)`, 'm').exec(indent + rest)?.[1] ?? '';
        return { body, apiVersion: top('apiVersion'), kind: top('kind'), name: own('name'), namespace: own('namespace') };
    });
}

export interface Difference {
    sign: ' ' | '+' | '-';
    line: string;
}

const MOST = 4000;

/** Lines that differ, with three around them; the longest common subsequence, which is small work for an object. */
export function difference(before: string, after: string): Difference[] {
    const [one, other] = [before.trimEnd().split('\n'), after.trimEnd().split('\n')];
    let start = 0;
    while (start < one.length && start < other.length && one[start] === other[start]) start += 1;
    let end = 0;
    while (end < one.length - start && end < other.length - start && one.at(-1 - end) === other.at(-1 - end)) end += 1;
    const [left, right] = [one.slice(start, one.length - end), other.slice(start, other.length - end)];
    const all: Difference[] = one.slice(0, start).map((line) => ({ sign: ' ', line }));
    all.push(...middle(left, right));
    all.push(...one.slice(one.length - end).map((line): Difference => ({ sign: ' ', line })));
    const near = new Set(all.flatMap(({ sign }, at) => (sign === ' ' ? [] : [-3, -2, -1, 0, 1, 2, 3].map((by) => at + by))));
    return all.filter((_line, at) => near.has(at));
}

function middle(left: string[], right: string[]): Difference[] {
    const removed = left.map((line): Difference => ({ sign: '-', line }));
    const added = right.map((line): Difference => ({ sign: '+', line }));
    if (left.length * right.length > MOST * MOST) return [...removed, ...added];
    const lengths = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
    for (let row = left.length - 1; row >= 0; row -= 1) {
        for (let column = right.length - 1; column >= 0; column -= 1) {
            lengths[row]![column] =
                left[row] === right[column]
                    ? lengths[row + 1]![column + 1]! + 1
                    : Math.max(lengths[row + 1]![column]!, lengths[row]![column + 1]!);
        }
    }
    const all: Difference[] = [];
    let [row, column] = [0, 0];
    while (row < left.length || column < right.length) {
        if (row < left.length && column < right.length && left[row] === right[column]) {
            all.push({ sign: ' ', line: left[row]! });
            row += 1;
            column += 1;
        } else if (column >= right.length || (row < left.length && lengths[row + 1]![column]! >= lengths[row]![column + 1]!)) {
            all.push(removed[row++]!);
        } else {
            all.push(added[column++]!);
        }
    }
    return all;
}
