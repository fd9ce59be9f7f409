// The one API, as the user of the session.

export interface Owner {
    apiVersion: string;
    kind: string;
    name: string;
    uid: string;
    controller?: boolean;
}

export interface Metadata {
    name: string;
    namespace?: string;
    uid: string;
    resourceVersion: string;
    creationTimestamp: string;
    deletionTimestamp?: string;
    labels?: Record<string, string>;
    annotations?: Record<string, string>;
    finalizers?: string[];
    ownerReferences?: Owner[];
}

/** An object of any kind. */
export type Anything = any;

export interface Thing {
    apiVersion?: string;
    kind?: string;
    metadata: Metadata;
    spec?: Anything;
    status?: Anything;
    [more: string]: Anything;
}

/** The server's refusal, in its own words. */
export class Refused extends Error {
    constructor(
        readonly code: number,
        readonly reason: string,
        message: string,
        readonly details: Anything = undefined,
    ) {
        super(message);
    }
}

export interface Call {
    method?: string;
    accept?: string;
    type?: string;
    body?: string;
    signal?: AbortSignal;
}

/** Answers with 2xx alone; everything else is thrown as {@link Refused}. */
export async function call(path: string, { method, accept, type, body, signal }: Call = {}): Promise<Response> {
    const headers: Record<string, string> = { 'x-skiff-ui': '1', accept: accept ?? 'application/json' };
    if (type) headers['content-type'] = type;
    let answer: Response;
    try {
        answer = await fetch(path, { method: method ?? 'GET', headers, body: body ?? null, signal: signal ?? null });
    } catch (error) {
        if (signal?.aborted) throw error;
        throw new Refused(0, 'Unreachable', String(error));
    }
    if (answer.ok) return answer;
    const told = await answer.text();
    if (answer.status === 401) await ended();
    throw refusal(answer.status, told);
}

function refusal(code: number, told: string): Refused {
    try {
        const status = JSON.parse(told);
        return new Refused(code, status.reason ?? '', status.message ?? told, status.details);
    } catch {
        return new Refused(code, '', told.trim() || `HTTP ${code}`);
    }
}

/** Loads the login when the session is over; a 401 may also come from a server behind the API. */
async function ended(): Promise<void> {
    const answer = await fetch('/ui/session', { headers: { 'x-skiff-ui': '1' } }).catch(() => undefined);
    if (answer?.status === 401) location.reload();
}

export async function get<T = Anything>(path: string, signal?: AbortSignal): Promise<T> {
    return (await call(path, { signal })).json() as Promise<T>;
}

export async function send<T = Anything>(method: string, path: string, body: Anything, type?: string): Promise<T> {
    const answer = await call(path, { method, type: type ?? 'application/json', body: JSON.stringify(body) });
    return answer.json() as Promise<T>;
}

/** Lines of a body as they come. One that is longer than `longest` comes in pieces. */
export async function* lines(answer: Response, longest = 64 << 20): AsyncGenerator<string[]> {
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) break;
            const pieces = (rest + value).split('\n');
            rest = pieces.pop() ?? '';
            if (rest.length > longest) {
                pieces.push(rest);
                rest = '';
            }
            if (pieces.length) yield pieces;
        }
        if (rest) yield [rest];
    } finally {
        await reader.cancel().catch(() => undefined);
    }
}

export interface Change {
    type: string;
    object: Anything;
}

export interface Follower {
    /** All there is; called again after a gap. `done` is false while further pages follow. */
    listed(list: Anything, first: boolean, done: boolean): void;
    changed(changes: Change[]): void;
    failed(error: Refused | undefined): void;
}

const PAGE = 1000;

/** The time of the past that is looked at; empty for now. */
let past = '';

export function look(at: string): void {
    past = at;
}

/** The path of objects as they were at the time that is looked at. */
export function asOf(path: string): string {
    return past ? `${withQuery(path)}at=${encodeURIComponent(past)}` : path;
}

/** Lists and watches until the signal says otherwise, whatever happens in between. The past is listed once. */
export async function follow(path: string, accept: string, to: Follower, signal: AbortSignal): Promise<void> {
    const then = past && asOf(path);
    for (let failures = 0; !signal.aborted; ) {
        try {
            if (then) {
                to.listed(await (await call(then, { accept, signal })).json(), true, true);
                return to.failed(undefined);
            }
            let version: string | undefined = await list(path, accept, to, signal);
            to.failed(undefined);
            while (version) version = await watch(path, accept, version, to, signal, () => (failures = 0));
        } catch (error) {
            if (signal.aborted) return;
            const refused = error instanceof Refused ? error : new Refused(0, '', String(error));
            to.failed(refused);
            if (then && ![0, 429].includes(refused.code)) return;
            failures += 1;
        }
        // A watch that was refused may be so for good: it is asked for ever more seldom.
        if (!signal.aborted) await pause(Math.min(30_000, 500 * 2 ** failures), signal);
    }
}

async function list(path: string, accept: string, to: Follower, signal: AbortSignal): Promise<string> {
    let token = '';
    for (let first = true; ; first = false) {
        const more = token ? `&continue=${encodeURIComponent(token)}` : '';
        const page = await (await call(`${withQuery(path)}limit=${PAGE}${more}`, { accept, signal })).json();
        token = page.metadata?.continue ?? '';
        to.listed(page, first, !token);
        if (!token) return page.metadata.resourceVersion;
    }
}

/** The revision to go on from; none where that is too old. */
async function watch(
    path: string,
    accept: string,
    version: string,
    to: Follower,
    signal: AbortSignal,
    begun: () => void,
): Promise<string | undefined> {
    const query = `watch=true&allowWatchBookmarks=true&resourceVersion=${version}`;
    const answer = await call(`${withQuery(path)}${query}`, { accept, signal });
    begun();
    let last = version;
    for await (const batch of lines(answer)) {
        const changes: Change[] = batch.filter(Boolean).map((line) => JSON.parse(line));
        for (const change of changes) {
            if (change.type === 'ERROR') return undefined;
            const object = change.object;
            last = object.metadata?.resourceVersion || object.rows?.[0]?.object?.metadata?.resourceVersion || last;
        }
        to.changed(changes.filter((change) => change.type !== 'BOOKMARK'));
    }
    return last;
}

export function withQuery(path: string): string {
    return path + (path.includes('?') ? '&' : '?');
}

export function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
        const timer = setTimeout(resolve, milliseconds);
        signal?.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
    });
}

/** Asks for what no watch tells: now, and then every minute, as long as somebody can see the page. */
export async function eachMinute(ask: () => Promise<void>, signal: AbortSignal): Promise<void> {
    for (; !signal.aborted; await pause(60_000, signal)) {
        if (document.hidden) {
            await new Promise<void>((resolve) => {
                document.addEventListener('visibilitychange', () => resolve(), { once: true, signal });
                signal.addEventListener('abort', () => resolve(), { once: true });
            });
        }
        if (!signal.aborted) await ask();
    }
}

/** Follows whole objects, keeping of each what `reduce` makes of it; `told` comes at most ten times a second. */
export function objects<T>(
    path: string,
    reduce: (object: Thing) => T,
    told: (all: Map<string, T>, error: Refused | undefined) => void,
): () => void {
    const stop = new AbortController();
    let all = new Map<string, T>();
    let failure: Refused | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const tell = () => {
        timer ??= setTimeout(() => {
            timer = undefined;
            if (!stop.signal.aborted) told(all, failure);
        }, 100);
    };
    const to: Follower = {
        listed(list, first) {
            if (first) all = new Map();
            for (const item of list.items ?? []) all.set(item.metadata.uid, reduce(item));
            tell();
        },
        changed(changes) {
            for (const { type, object } of changes) {
                if (type === 'DELETED') all.delete(object.metadata.uid);
                else all.set(object.metadata.uid, reduce(object));
            }
            tell();
        },
        failed(error) {
            failure = error;
            tell();
        },
    };
    void follow(path, 'application/json', to, stop.signal);
    return () => stop.abort();
}
