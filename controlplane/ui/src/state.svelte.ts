// Where the person is, and what holds for all views.
import { get, look, objects, pause, Refused } from './api';
import { discover, keyOf, type Kind } from './discovery';

/** An address: `#/objects/deployments.apps?namespace=default&name=web`. */
export interface Place {
    view: string;
    key: string;
    query: Record<string, string>;
}

function read(): Place {
    const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?');
    const [view = '', key = ''] = path.split('/').map(decodeURIComponent);
    return { view: view || 'cluster', key, query: Object.fromEntries(new URLSearchParams(query)) };
}

export const app = $state({
    place: read(),
    user: '',
    groups: [] as string[],
    kinds: [] as Kind[],
    namespaces: [] as string[],
    /** Empty for all of them. */
    namespace: localStorage.getItem('skiff.namespace') ?? 'default',
    failure: '',
    /** The time of the past that is looked at, and from which ages are counted. */
    at: '',
    now: Date.now(),
});

addEventListener('hashchange', () => (app.place = read()));
setInterval(() => {
    if (!app.at) app.now = Date.now();
}, 5000);

/** Shows everything as it was at a time; as it is now for an empty one. */
export function lookAt(at: string): void {
    look(at);
    app.at = at;
    app.now = at ? Date.parse(at) : Date.now();
}

export function link(view: string, key = '', query: Record<string, string> = {}): string {
    const told = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
    return `#/${view}${key ? `/${encodeURIComponent(key)}` : ''}${told ? `?${told}` : ''}`;
}

/** The address of an object of a known kind. */
export function linkTo(kind: Kind, namespace: string | undefined, name: string): string {
    return link('objects', keyOf(kind), { in: namespace ?? '', name });
}

export function choose(namespace: string): void {
    app.namespace = namespace;
    localStorage.setItem('skiff.namespace', namespace);
}

export function kindOf(apiVersion: string, kind: string): Kind | undefined {
    const [version, group] = apiVersion.split('/').reverse();
    return app.kinds.find((own) => own.kind === kind && own.group === (group ?? '') && version);
}

export function kindBy(key: string): Kind | undefined {
    return app.kinds.find((kind) => keyOf(kind) === key);
}

/** Loads what every view needs. */
export async function load(): Promise<void> {
    while (!(await begin())) await pause(2000);
    await loadNamespaces();
    // The cookie lasts as long as the page asks for it.
    setInterval(() => void get('/ui/session').catch(() => undefined), 5 * 60_000);
}

/** Asks for the session and the kinds; false if the server may answer later. */
async function begin(): Promise<boolean> {
    try {
        const session = await get('/ui/session');
        app.user = session.user;
        app.groups = session.groups;
        app.kinds = await discover();
        app.failure = '';
        return true;
    } catch (error) {
        app.failure = said(error);
        return error instanceof Refused && error.code >= 400 && error.code < 500;
    }
}

/** Who may not list namespaces writes the name himself. */
async function loadNamespaces(): Promise<void> {
    const path = '/api/v1/namespaces';
    try {
        const list = await get(path);
        app.namespaces = list.items.map((item: { metadata: { name: string } }) => item.metadata.name);
    } catch {
        return;
    }
    objects(path, ({ metadata }) => metadata.name, (all, error) => {
        if (!error) app.namespaces = [...all.values()].sort();
    });
}

export function said(error: unknown): string {
    if (error instanceof Refused) return error.reason ? `${error.reason}: ${error.message}` : error.message;
    return error instanceof Error ? error.message : String(error);
}

/** `5m`, as kubectl writes ages. */
export function age(since: string | undefined, now: number): string {
    if (!since) return '';
    const seconds = Math.max(0, Math.floor((now - Date.parse(since)) / 1000));
    if (seconds < 120) return `${seconds}s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 10) return seconds % 60 ? `${minutes}m${seconds % 60}s` : `${minutes}m`;
    if (minutes < 180) return `${minutes}m`;
    const hours = Math.floor(minutes / 60);
    if (hours < 8) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
    if (hours < 48) return `${hours}h`;
    const days = Math.floor(hours / 24);
    if (days < 8) return hours % 24 ? `${days}d${hours % 24}h` : `${days}d`;
    return days < 730 ? `${days}d` : `${Math.floor(days / 365)}y`;
}
