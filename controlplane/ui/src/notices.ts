// What people want to be told without asking: failing rollouts, crash loops, nodes that are not Ready.
import type { Thing } from './api';

export interface Notice {
    uid: string;
    /** `deployments.apps` */
    key: string;
    namespace: string;
    name: string;
    since: string;
    told: string;
}

/** An Event of a crash loop is repeated within this time, as containers wait five minutes at most. */
const LOOP = 6 * 60_000;

function notice(key: string, object: Thing, condition: Thing['status']): Notice {
    const { uid, namespace = '', name } = object.metadata;
    const told = [condition.reason, condition.message].filter(Boolean).join(': ');
    return { uid, key, namespace, name, since: condition.lastTransitionTime ?? '', told };
}

const conditions = (object: Thing): Thing['status'][] => object.status?.conditions ?? [];

export function ofNode(node: Thing): Notice | undefined {
    const ready = conditions(node).find(({ type }) => type === 'Ready');
    return ready && ready.status !== 'True' ? notice('nodes', node, ready) : undefined;
}

export function ofDeployment(deployment: Thing): Notice | undefined {
    const bad = conditions(deployment).find(
        ({ type, status }) => (type === 'Progressing' && status === 'False') || (type === 'ReplicaFailure' && status === 'True'),
    );
    return bad && notice('deployments.apps', deployment, bad);
}

/** A warning that a container is started no more for now. */
export function ofBackOff(event: Thing): Notice {
    const { name = '', namespace = '', fieldPath = '' } = event.involvedObject ?? {};
    const since = event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? '';
    return { uid: `${event.involvedObject?.uid}${fieldPath}`, key: 'pods', namespace, name, since, told: event.message ?? '' };
}

/** Those that hold, the last first, each object once. */
export function current(states: Notice[], loops: Notice[], now: number): Notice[] {
    const fresh = loops.filter(({ since }) => now - Date.parse(since) < LOOP);
    const all = [...states, ...fresh].sort((one, other) => other.since.localeCompare(one.since));
    return [...new Map(all.map((own) => [own.uid, own])).values()];
}
