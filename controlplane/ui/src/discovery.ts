// Every kind that the server has, by its own discovery.
import { call } from './api';

export interface Kind {
    group: string;
    version: string;
    plural: string;
    kind: string;
    namespaced: boolean;
    verbs: string[];
    shortNames: string[];
    subresources: string[];
}

const ACCEPT = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';

interface Found {
    items: {
        metadata: { name?: string };
        versions: {
            version: string;
            resources?: {
                resource: string;
                responseKind?: { kind: string };
                scope: string;
                verbs: string[];
                shortNames?: string[];
                subresources?: { subresource: string }[];
            }[];
        }[];
    }[];
}

/** Kinds that can be listed, each in the version that its group prefers. */
export async function discover(): Promise<Kind[]> {
    const pages = await Promise.all(['/api', '/apis'].map(async (path) => (await call(path, { accept: ACCEPT })).json()));
    const kinds = new Map<string, Kind>();
    for (const item of (pages as Found[]).flatMap((page) => page.items)) {
        const group = item.metadata.name ?? '';
        for (const { version, resources } of item.versions) {
            for (const found of resources ?? []) {
                const key = `${found.resource}.${group}`;
                if (kinds.has(key) || !found.verbs.includes('list')) continue;
                kinds.set(key, {
                    group,
                    version,
                    plural: found.resource,
                    kind: found.responseKind?.kind ?? found.resource,
                    namespaced: found.scope === 'Namespaced',
                    verbs: found.verbs,
                    shortNames: found.shortNames ?? [],
                    subresources: (found.subresources ?? []).map((own) => own.subresource),
                });
            }
        }
    }
    return [...kinds.values()];
}

export function root(kind: Kind): string {
    return kind.group ? `/apis/${kind.group}/${kind.version}` : `/api/${kind.version}`;
}

/** The path of a kind's collection, or of an object in it. */
export function pathOf(kind: Kind, namespace: string, name = ''): string {
    const place = kind.namespaced && namespace ? `/namespaces/${encodeURIComponent(namespace)}` : '';
    return `${root(kind)}${place}/${kind.plural}${name ? `/${encodeURIComponent(name)}` : ''}`;
}

/** `deployments.apps` */
export function keyOf(kind: Kind): string {
    return kind.group ? `${kind.plural}.${kind.group}` : kind.plural;
}

const ROOMS: [string, string[]][] = [
    [
        'workloads',
        [
            'pods', 'deployments.apps', 'replicasets.apps', 'statefulsets.apps', 'daemonsets.apps', 'jobs.batch',
            'cronjobs.batch', 'replicationcontrollers', 'horizontalpodautoscalers.autoscaling',
            'poddisruptionbudgets.policy', 'podtemplates', 'controllerrevisions.apps',
        ],
    ],
    [
        'network',
        [
            'services', 'endpointslices.discovery.k8s.io', 'endpoints', 'ingresses.networking.k8s.io',
            'ingressclasses.networking.k8s.io', 'networkpolicies.networking.k8s.io', 'ipaddresses.networking.k8s.io',
            'servicecidrs.networking.k8s.io',
        ],
    ],
    ['configuration', ['configmaps', 'secrets', 'resourcequotas', 'limitranges', 'priorityclasses.scheduling.k8s.io']],
    ['storage', ['persistentvolumeclaims', 'persistentvolumes', 'storageclasses.storage.k8s.io']],
    [
        'access',
        [
            'serviceaccounts', 'roles.rbac.authorization.k8s.io', 'rolebindings.rbac.authorization.k8s.io',
            'clusterroles.rbac.authorization.k8s.io', 'clusterrolebindings.rbac.authorization.k8s.io',
            'certificatesigningrequests.certificates.k8s.io',
        ],
    ],
    [
        'cluster',
        [
            'nodes', 'namespaces', 'events.events.k8s.io', 'leases.coordination.k8s.io',
            'customresourcedefinitions.apiextensions.k8s.io', 'apiservices.apiregistration.k8s.io',
        ],
    ],
];
/** Served twice; the newer one is shown. */
const DOUBLE = ['events', 'componentstatuses'];

/** The kinds in the rooms of the menu; those that nobody sorted are in the last one. */
export function rooms(kinds: Kind[]): [string, Kind[]][] {
    const left = new Map(kinds.map((kind) => [keyOf(kind), kind]));
    for (const double of DOUBLE) left.delete(double);
    const sorted = ROOMS.map(([room, keys]): [string, Kind[]] => {
        const own = keys.flatMap((key) => left.get(key) ?? []);
        for (const key of keys) left.delete(key);
        return [room, own];
    });
    const others = [...left.values()].sort((one, other) => one.kind.localeCompare(other.kind));
    return [...sorted, ['others', others] as [string, Kind[]]].filter(([, own]) => own.length);
}
