// What a pod's status comes to, for a glance.
import type { Thing } from './api';

export type PodState = 'ready' | 'starting' | 'waiting' | 'failed' | 'done' | 'leaving';

/** A pod's state, and the word for it that kubectl's table has. */
export function podState(pod: Thing): { state: PodState; told: string } {
    const status = pod.status ?? {};
    if (pod.metadata.deletionTimestamp) return { state: 'leaving', told: 'Terminating' };
    if (status.phase === 'Succeeded') return { state: 'done', told: status.reason ?? 'Completed' };
    if (status.phase === 'Failed') return { state: 'failed', told: status.reason ?? 'Failed' };
    const containers: Thing['status'][] = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
    for (const { state } of containers) {
        const reason = state?.waiting?.reason ?? state?.terminated?.reason;
        if (reason && /Err|BackOff|OOM|Fail|Cannot/.test(reason)) return { state: 'failed', told: reason };
    }
    const ready = status.conditions?.some((own: Thing['status']) => own.type === 'Ready' && own.status === 'True');
    if (ready) return { state: 'ready', told: 'Running' };
    if (!pod.spec?.nodeName) return { state: 'waiting', told: 'Pending' };
    const waiting = containers.find(({ state }) => state?.waiting)?.state.waiting.reason;
    return { state: 'starting', told: waiting ?? status.phase ?? 'Pending' };
}

/** The selector of the pods that belong to an object, as a query has it; empty where there is none. */
export function selectorOf({ spec }: Thing): string {
    const own = spec?.selector ?? {};
    // Those of Services and ReplicationControllers are plain maps.
    const plain = typeof own === 'object' && Object.values(own).every((value) => typeof value === 'string');
    const labels = own.matchLabels ?? (plain ? own : {});
    const expressions = (own.matchExpressions ?? []).map(({ key, operator, values }: Thing['spec']) => {
        if (operator === 'Exists') return key;
        return operator === 'DoesNotExist' ? `!${key}` : `${key} ${operator.toLowerCase()} (${values.join()})`;
    });
    return [...Object.entries(labels).map(([key, value]) => `${key}=${value}`), ...expressions].join();
}

const UNITS: Record<string, number> = {
    n: 1e-9, u: 1e-6, m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
    Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/** The number of a quantity; for drawing alone. */
export function quantity(told: string | number | undefined): number {
    const found = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)$/.exec(String(told ?? '0'));
    return found ? Number(found[1]) * (UNITS[found[2] ?? ''] ?? 1) : 0;
}

/** `1.5`, `512 Mi`. */
export function shown(value: number, name: string): string {
    if (name === 'cpu') return value >= 10 ? value.toFixed(0) : value.toFixed(value >= 1 ? 1 : 2);
    if (name === 'pods') return String(value);
    const gibi = value / 2 ** 30;
    return gibi >= 1 ? `${gibi.toFixed(1)} Gi` : `${(value / 2 ** 20).toFixed(0)} Mi`;
}

/** What the scheduler counts of a pod: its containers together, or the largest that comes before them. */
export function requests(pod: Thing): { cpu: number; memory: number } {
    const of = (name: 'cpu' | 'memory') => {
        const own = (container: Thing['spec']) => quantity(container.resources?.requests?.[name]);
        const init: Thing['spec'][] = pod.spec?.initContainers ?? [];
        const sum = (all: Thing['spec'][]) => all.reduce((total, container) => total + own(container), 0);
        const lasting = sum(init.filter((container) => container.restartPolicy === 'Always'));
        const first = Math.max(0, ...init.filter((container) => container.restartPolicy !== 'Always').map(own));
        return Math.max(sum(pod.spec?.containers ?? []) + lasting, first) + quantity(pod.spec?.overhead?.[name]);
    };
    return { cpu: of('cpu'), memory: of('memory') };
}
