// How a workload became containers: the steps of `skiff trace` (ctl/src/trace/steps.rs), from the same times. Those of requests
// come from the server's memory of writes, those of nodes from their agents, the rest from events and objects. What no source
// tells stays unknown; nothing is derived from anything else.
import { asOf, get, type Thing } from './api';
import { pathOf, type Kind } from './discovery';
import { kindBy, link, linkTo } from './state.svelte';

/** Milliseconds since 1970, and whether the source knows the second alone. */
export interface Moment {
    at: number;
    coarse: boolean;
    /** Addresses of what it is of, and of what tells it. */
    object?: string;
    origin?: string;
}

export interface Write {
    namespace: string;
    name: string;
    subresource: string;
    verb: string;
    user: string;
    received: string;
    stored: string;
}

export interface Step {
    id: string;
    times: Moment[];
    source: string;
}

/** A change of a workload by somebody, and the pods that it led to. */
export interface Run {
    write: Write | undefined;
    how: 'created' | 'changed' | 'scaled';
    begin: Moment;
    pods: Thing[];
}

interface Kinds {
    target: Kind;
    makers: Kind | undefined;
    pods: Kind;
}

export interface Material {
    kinds: Kinds;
    target: Thing;
    makers: Thing[];
    pods: Thing[];
    events: Thing[];
    milestones: Map<string, Record<string, string>>;
    writes: { target: Write[]; makers: Write[]; pods: Write[] };
}

/** Pods whose nodes are asked. */
const ASKED = 60;
const EVENTS = 2000;

/** A time of any fineness: JavaScript's own parser drops what is below a millisecond. */
export function moment(told: string | undefined): Moment | undefined {
    const found = told && /^(.*\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$/.exec(told);
    if (!found) return undefined;
    const at = Date.parse(`${found[1]}${found[3]}`) + Number(found[2] ?? 0) * 1000;
    return Number.isNaN(at) ? undefined : { at, coarse: !found[2] };
}

/** Asks all sources. What a node has told of a pod that is Ready is asked once. */
export async function gather(
    kinds: Kinds,
    found: { target: Thing; makers: Thing[]; pods: Thing[] },
    known: Map<string, Record<string, string>>,
    signal: AbortSignal,
): Promise<Material> {
    const namespace = found.target.metadata.namespace ?? '';
    const memory = async (path: string): Promise<Write[]> => {
        const told = await get(`/ui/writes${path}`, signal).catch(() => undefined);
        return told?.writes ?? [];
    };
    const events = `/api/v1/namespaces/${encodeURIComponent(namespace)}/events?limit=${EVENTS}&fieldSelector=involvedObject.kind%3DPod`;
    const [target, makers, pods, told] = await Promise.all([
        memory(pathOf(kinds.target, namespace, found.target.metadata.name)),
        kinds.makers ? memory(pathOf(kinds.makers, namespace)) : [],
        memory(pathOf(kinds.pods, namespace)),
        get(asOf(events), signal).catch(() => ({ items: [] })),
        ask(found.pods, known, signal),
    ]);
    return { ...found, kinds, events: told.items, milestones: known, writes: { target, makers, pods } };
}

async function ask(pods: Thing[], known: Map<string, Record<string, string>>, signal: AbortSignal): Promise<void> {
    const left = pods.filter((pod) => pod.spec?.nodeName && !known.get(pod.metadata.uid)?.ready).slice(-ASKED);
    const one = async (pod: Thing) => {
        const path = `/api/v1/nodes/${encodeURIComponent(pod.spec.nodeName)}/proxy/milestones?uid=${pod.metadata.uid}`;
        const told = await get(path, signal).catch(() => undefined);
        if (told) known.set(pod.metadata.uid, told);
    };
    await Promise.all(left.map(one));
}

/** The changes that led to pods which are still there, the last one first. */
export function runs({ target, pods, writes }: Material): Run[] {
    const created = moment(target.metadata.creationTimestamp)?.at ?? 0;
    const causes = writes.target.filter(
        (write) =>
            ['create', 'update', 'patch'].includes(write.verb) &&
            ['', 'scale'].includes(write.subresource) &&
            // What controllers note in the object is an effect.
            !write.user.startsWith('system:serviceaccount:kube-system:') &&
            (moment(write.received)?.at ?? 0) >= created - 1000,
    );
    const all = causes.map((write): Run => {
        const how = write.verb === 'create' ? 'created' : write.subresource === 'scale' ? 'scaled' : 'changed';
        return { write, how, begin: moment(write.received)!, pods: [] };
    });
    const older: Run = { write: undefined, how: 'created', begin: { at: created, coarse: true }, pods: [] };
    for (const pod of pods) {
        const made = moment(creation(pod, writes.pods)?.received);
        const run = made && all.findLast(({ begin }) => begin.at <= made.at);
        (run ?? older).pods.push(pod);
    }
    return [older, ...all].filter((run) => run.pods.length).reverse();
}

/** The last creation by this name: before it, the name was another's. */
function creation(object: Thing, writes: Write[]): Write | undefined {
    return writes.findLast(
        ({ verb, subresource, name }) => verb === 'create' && !subresource && name === object.metadata.name,
    );
}

/** A write's request in the audit log. The log has no name where the server has made it. */
function record(kind: Kind, write: Write): string {
    const named = write.verb !== 'create' || write.subresource ? write.name : '';
    const words = [write.verb, kind.plural, write.subresource, write.namespace, named].filter(Boolean).join(' ');
    return link('audit', '', { words, at: write.received });
}

function written(kind: Kind | undefined, write: Write | undefined, time: 'received' | 'stored'): Moment | undefined {
    const found = moment(write?.[time]);
    if (!found || !write || !kind) return found;
    return { ...found, object: linkTo(kind, write.namespace, write.name), origin: record(kind, write) };
}

/** The steps of a run in their order. */
export function steps(material: Material, run: Run): Step[] {
    const { kinds, makers, writes } = material;
    const asked = (id: string, kind: Kind | undefined, all: (Write | undefined)[], time: 'received' | 'stored') =>
        step(id, 'server', all.map((write) => written(kind, write, time)));
    const all: Step[] = [
        asked('received', kinds.target, [run.write], 'received'),
        asked('stored', kinds.target, [run.write], 'stored'),
    ];
    const owners = new Set(run.pods.flatMap((pod) => pod.metadata.ownerReferences ?? []).map(({ uid }) => uid));
    const names = makers.filter(({ metadata }) => owners.has(metadata.uid)).map(({ metadata }) => metadata.name);
    if (names.length) {
        const made = names.map((name) => writes.makers.find((write) => changes(write, name, run.begin.at)));
        all.push(asked('makerAsked', kinds.makers, made, 'received'));
        all.push(asked('makerStored', kinds.makers, made, 'stored'));
    }
    const created = run.pods.map((pod) => creation(pod, writes.pods));
    const bound = run.pods.map(({ metadata }) =>
        writes.pods.findLast(({ subresource, name }) => subresource === 'binding' && name === metadata.name),
    );
    all.push(asked('podsAsked', kinds.pods, created, 'received'));
    all.push(asked('podsStored', kinds.pods, created, 'stored'));
    all.push(asked('bound', kinds.pods, bound, 'stored'));
    all.push(...onNodes(material, run));
    return all;
}

function changes(write: Write, name: string, since: number): boolean {
    return (
        write.name === name &&
        ['create', 'update', 'patch'].includes(write.verb) &&
        write.subresource !== 'status' &&
        (moment(write.received)?.at ?? 0) >= since
    );
}

function onNodes({ kinds, events, milestones, writes }: Material, { pods }: Run): Step[] {
    const nodes = kindBy('nodes');
    const eventKind = kindBy('events.events.k8s.io') ?? kindBy('events');
    const of = (pod: Thing, time: string | undefined, origin: string | undefined): Moment | undefined => {
        const found = moment(time);
        const object = linkTo(kinds.pods, pod.metadata.namespace, pod.metadata.name);
        return found && { ...found, object, origin: origin ?? object };
    };
    const node = (id: string, source: string, coarse: (pod: Thing) => Moment | undefined = () => undefined) => {
        const place = (pod: Thing) => (nodes && pod.spec?.nodeName ? linkTo(nodes, '', pod.spec.nodeName) : undefined);
        const told = pods.map((pod) => of(pod, milestones.get(pod.metadata.uid)?.[id], place(pod))).filter(isKnown);
        const other = pods.map(coarse).filter(isKnown);
        // A node that was started again since, or that may not be asked, knows less than the other source.
        const fine = told.length > 0 && told.length >= other.length;
        return fine ? step(id, 'node', told) : step(id, source, other);
    };
    const time = (event: Thing): string => event.eventTime ?? event.firstTimestamp ?? event.metadata.creationTimestamp;
    const event = (reason: string) => (pod: Thing) => {
        const own = events.filter((event) => event.involvedObject?.uid === pod.metadata.uid && event.reason === reason);
        const first = own.sort((one, other) => (time(one) < time(other) ? -1 : 1))[0];
        return first && of(pod, time(first), eventKind && linkTo(eventKind, first.metadata.namespace, first.metadata.name));
    };
    const condition = (type: string) => (pod: Thing) => {
        const own = pod.status?.conditions?.find((own: Thing['status']) => own.type === type && own.status === 'True');
        return of(pod, own?.lastTransitionTime, undefined);
    };
    const stored = pods.map((pod) => {
        const ready = moment(milestones.get(pod.metadata.uid)?.ready);
        const first = (write: Write) =>
            write.subresource === 'status' && write.name === pod.metadata.name && moment(write.stored)!.at >= ready!.at;
        return ready && written(kinds.pods, writes.pods.find(first), 'stored');
    });
    return [
        node('seen', 'status', (pod) => of(pod, pod.status?.startTime, undefined)),
        node('network', 'status'),
        node('volumes', 'status'),
        node('sandbox', 'status', condition('PodReadyToStartContainers')),
        step('pulled', 'events', pods.map(event('Pulled'))),
        node('created', 'events', event('Created')),
        node('started', 'events', event('Started')),
        node('ready', 'status', condition('Ready')),
        step('readyStored', 'server', stored),
    ];
}

function isKnown(told: Moment | undefined): told is Moment {
    return told !== undefined;
}

function step(id: string, source: string, times: (Moment | undefined)[]): Step {
    return { id, source, times: times.filter(isKnown).sort((one, other) => one.at - other.at) };
}

/** The first and the last time that are known finely; all times are told since the first one. */
export function extent(all: Step[]): { from: number; to: number } | undefined {
    const fine = all.flatMap(({ times }) => times).filter(({ coarse }) => !coarse);
    const times = (fine.length ? fine : all.flatMap(({ times }) => times)).map(({ at }) => at);
    return times.length ? { from: Math.min(...times), to: Math.max(...times) } : undefined;
}

/** `41.2`, or `≈ 0–1000` where the source tells the second alone. */
export function told({ at, coarse }: Moment, from: number): string {
    const since = at - from;
    return coarse ? `≈ ${Math.max(0, Math.round(since))}–${Math.round(since) + 1000}` : since.toFixed(1);
}

/** `12.1–41.2 ms`, or `1.45–10.50 s`. */
export function spoken(moments: Moment[], from: number): string {
    if (moments.some(({ coarse, at }) => coarse || at - from < 1000)) {
        return `${moments.map((moment) => told(moment, from)).join('–')} ms`;
    }
    return `${moments.map(({ at }) => ((at - from) / 1000).toFixed(2)).join('–')} s`;
}
