// The server's Table of a collection, followed: rows sorted and filtered, at most four times a second.
import { follow, type Change, type Follower, type Metadata, type Refused } from './api';

export interface Column {
    name: string;
    type: string;
    priority: number;
    description?: string;
}

export interface Row {
    cells: (string | number | boolean | null)[];
    metadata: Metadata;
    /** What the filter looks at. */
    words: string;
}

const ACCEPT = 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json';
const EVERY = 250;

export class Table {
    columns = $state.raw<Column[]>([]);
    rows = $state.raw<Row[]>([]);
    total = $state(0);
    loaded = $state(false);
    failure = $state<Refused | undefined>();
    #all = new Map<string, Row>();
    #filter: string[] = [];
    #sort: { column: number; down: boolean } = { column: -1, down: false };
    #stop = new AbortController();
    #timer: ReturnType<typeof setTimeout> | undefined;
    #shown = 0;

    constructor(path: string) {
        const to: Follower = {
            listed: (list, first, done) => {
                if (first) this.#all.clear();
                this.#learn(list);
                for (const row of list.rows ?? []) this.#put(row);
                this.loaded = done;
                if (first) this.#show();
                else this.#soon();
            },
            changed: (changes) => this.#change(changes),
            failed: (error) => {
                this.failure = error;
            },
        };
        void follow(path, ACCEPT, to, this.#stop.signal);
    }

    stop(): void {
        this.#stop.abort();
        clearTimeout(this.#timer);
    }

    /** Shows rows that have all words, by a column, or by namespace and name for none. */
    arrange(words: string, column: number, down: boolean): void {
        this.#filter = words.toLowerCase().split(/\s+/).filter(Boolean);
        this.#sort = { column, down };
        this.#show();
    }

    #learn(table: { columnDefinitions?: Column[] | null }): void {
        if (table.columnDefinitions?.length) this.columns = table.columnDefinitions;
    }

    #put(row: { cells: Row['cells']; object: { metadata: Metadata } }): void {
        const { name, namespace, uid, resourceVersion, creationTimestamp, deletionTimestamp, labels } =
            row.object.metadata;
        const told = Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);
        this.#all.set(uid, {
            cells: row.cells,
            metadata: { name, namespace, uid, resourceVersion, creationTimestamp, deletionTimestamp },
            words: [namespace, ...row.cells, ...told].join(' ').toLowerCase(),
        });
    }

    #change(changes: Change[]): void {
        for (const { type, object } of changes) {
            this.#learn(object);
            for (const row of object.rows ?? []) {
                if (type === 'DELETED') this.#all.delete(row.object.metadata.uid);
                else this.#put(row);
            }
        }
        this.#soon();
    }

    #soon(): void {
        this.#timer ??= setTimeout(() => {
            this.#timer = undefined;
            this.#show();
        }, this.#shown + EVERY - performance.now());
    }

    #show(): void {
        this.#shown = performance.now();
        let rows = [...this.#all.values()];
        this.total = rows.length;
        if (this.#filter.length) rows = rows.filter((row) => this.#filter.every((word) => row.words.includes(word)));
        const { column, down } = this.#sort;
        const definition = this.columns[column];
        const by = definition ? comparison(column, definition) : byName;
        rows.sort((one, other) => (down ? by(other, one) : by(one, other)) || byName(one, other));
        this.rows = rows;
    }
}

function text(one: string, other: string): number {
    return one < other ? -1 : one > other ? 1 : 0;
}

function byName(one: Row, other: Row): number {
    const places = text(one.metadata.namespace ?? '', other.metadata.namespace ?? '');
    return places || text(one.metadata.name, other.metadata.name);
}

/** Ages by what they are made of; what looks like a number as one. */
function comparison(column: number, { name }: Column): (one: Row, other: Row) => number {
    if (name === 'Age') {
        return (one, other) => text(other.metadata.creationTimestamp, one.metadata.creationTimestamp);
    }
    return (one, other) => {
        const [first, second] = [one.cells[column] ?? '', other.cells[column] ?? ''];
        const difference = parseFloat(String(first)) - parseFloat(String(second));
        return difference || text(String(first), String(second));
    };
}
