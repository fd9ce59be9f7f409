// The versions of an object, and what each of them changed.
import { get, Refused, send, type Anything, type Thing } from './api';
import { pathOf, type Kind } from './discovery';
import { kindOf } from './state.svelte';

export interface Version {
    resourceVersion: string;
    time: string | null;
    ended: string | null;
    deleted: boolean;
    object: Thing;
}

export interface Change {
    field: string;
    before: string | undefined;
    after: string | undefined;
}

/** What changes with every write. */
const KEPT = /^metadata\.(managedFields|resourceVersion|generation)\b/;

function fields(value: Anything, path: string, all: Map<string, string>): Map<string, string> {
    const members: [string, Anything][] = value !== null && typeof value === 'object' ? Object.entries(value) : [];
    for (const [key, own] of members) {
        // Elements of lists are known by what the API knows them by.
        const name = Array.isArray(value) && own !== null && typeof own === 'object' ? (own.type ?? own.name ?? own.uid ?? key) : key;
        fields(own, Array.isArray(value) ? `${path}[${name}]` : path ? `${path}.${key}` : key, all);
    }
    if (!members.length && !KEPT.test(path)) all.set(path, typeof value === 'string' ? value : JSON.stringify(value));
    return all;
}

/** Fields that differ. */
export function changes(before: Thing, after: Thing): Change[] {
    const [old, now] = [fields(before, '', new Map()), fields(after, '', new Map())];
    const names = [...new Set([...old.keys(), ...now.keys()])];
    return names
        .filter((field) => old.get(field) !== now.get(field))
        .map((field) => ({ field, before: old.get(field), after: now.get(field) }));
}

/** The program that wrote a version, as far as the managers of fields tell. */
export function writer(object: Thing, before: Thing | undefined): string {
    const of = (thing: Thing | undefined): Anything[] => (thing?.metadata as Anything)?.managedFields ?? [];
    const known = new Set(of(before).map((own) => JSON.stringify(own)));
    const all = of(object);
    const fresh = all.filter((own) => !known.has(JSON.stringify(own)));
    const last = (fresh.length ? fresh : all).reduce((one, other) => (!one || (other.time ?? '') >= (one.time ?? '') ? other : one), undefined);
    return [last?.manager, last?.subresource].filter(Boolean).join(', ');
}

/** Makes an object anew as it was before its deletion began, as `skiff undelete` does; `versions` are newest first. */
export async function undelete(kind: Kind, namespace: string, versions: Version[]): Promise<void> {
    const own = versions.map(({ object }) => object).filter(({ metadata }) => metadata.uid === versions[0]?.object.metadata.uid);
    const last = own.find(({ metadata }) => !metadata.deletionTimestamp) ?? own[0];
    if (!last) return;
    const { status: _status, ...object } = last;
    const { name, labels, annotations, ...metadata } = last.metadata;
    // Those of the deletion are not the object's.
    const finalizers = metadata.finalizers?.filter((own) => own !== 'foregroundDeletion' && own !== 'orphan');
    const owners = await Promise.all((metadata.ownerReferences ?? []).map(async (owner) => {
        const known = kindOf(owner.apiVersion, owner.kind);
        const found = known && (await get<Thing>(pathOf(known, namespace, owner.name)).catch(absent));
        return found?.metadata.uid === owner.uid ? [owner] : [];
    }));
    await send('POST', pathOf(kind, namespace), {
        ...object,
        apiVersion: kind.group ? `${kind.group}/${kind.version}` : kind.version,
        kind: kind.kind,
        metadata: { name, labels, annotations, finalizers, ownerReferences: owners.flat() },
    });
}

/** Without its owner, the garbage collector would remove the object at once. */
function absent(error: unknown): undefined {
    if (!(error instanceof Refused && error.code === 404)) throw error;
}
