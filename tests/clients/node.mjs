// The JavaScript client: typed and generic calls, an informer, a watch and exec.
//
// usage: node node.mjs MODULE KUBECONFIG IMAGE    (the folder of @kubernetes/client-node; the image has a shell)

import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import { Writable } from 'node:stream';

const [module, kubeconfig, image] = process.argv.slice(2);
const k8s = await import(`${module}/dist/index.js`);
const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const core = config.makeApiClient(k8s.CoreV1Api);
const namespace = 'node';
const patchAs = (strategy) => k8s.setHeaderOptions('Content-Type', strategy);

async function eventually(what, probe) {
    let last;
    for (let tries = 0; tries < 1200; tries += 1) {
        last = await probe();
        if (last === true) return;
        await pause(100);
    }
    assert.fail(`${what}: last seen ${JSON.stringify(last)}`);
}

async function typed() {
    await core.createNamespace({ body: { metadata: { name: namespace } } });
    const list = () => core.listNamespacedConfigMap({ namespace, labelSelector: 'app=web' });
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const informer = k8s.makeInformer(config, path, list, 'app=web');
    const seen = [];
    for (const event of ['add', 'update', 'delete', 'error']) {
        informer.on(event, (object) => seen.push(`${event} ${object?.metadata?.name ?? object}`));
    }
    await informer.start();

    const name = 'settings';
    const body = { metadata: { name, labels: { app: 'web' } }, data: { a: '1' } };
    await core.createNamespacedConfigMap({ namespace, body });
    await assert.rejects(core.createNamespacedConfigMap({ namespace, body }), { code: 409 });
    await assert.rejects(core.readNamespacedConfigMap({ namespace, name: 'absent' }), { code: 404 });
    const patch = async (change, strategy, more = {}) =>
        (await core.patchNamespacedConfigMap({ namespace, name, body: change, ...more }, patchAs(strategy))).data;
    const add = [{ op: 'add', path: '/data/b', value: '2' }];
    assert.deepEqual(await patch(add, k8s.PatchStrategy.JsonPatch), { a: '1', b: '2' });
    assert.deepEqual(await patch({ data: { b: null } }, k8s.PatchStrategy.MergePatch), { a: '1' });
    assert.deepEqual(await patch({ data: { c: '3' } }, k8s.PatchStrategy.StrategicMergePatch), { a: '1', c: '3' });
    const whole = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name }, data: { d: '4' } };
    const applied = await patch(whole, k8s.PatchStrategy.ServerSideApply, { fieldManager: 'node' });
    assert.deepEqual(applied, { a: '1', c: '3', d: '4' });
    const current = await core.readNamespacedConfigMap({ namespace, name });
    current.data = { e: '5' };
    await core.replaceNamespacedConfigMap({ namespace, name, body: current });
    await assert.rejects(core.replaceNamespacedConfigMap({ namespace, name, body: current }), { code: 409 });
    assert.equal((await list()).items.length, 1);
    await core.deleteNamespacedConfigMap({ namespace, name });
    await eventually('the informer sees the deletion', () => seen.includes(`delete ${name}`) || seen);
    assert.deepEqual(seen, [`add ${name}`, ...Array(5).fill(`update ${name}`), `delete ${name}`]);
    await informer.stop();
}

async function generic() {
    const objects = k8s.KubernetesObjectApi.makeApiClient(config);
    const key = { apiVersion: 'v1', kind: 'Secret', metadata: { name: 'key', namespace } };
    assert.deepEqual((await objects.create({ ...key, stringData: { a: 'b' } })).data, { a: 'Yg==' });
    const labelled = { ...key, metadata: { ...key.metadata, labels: { by: 'hand' } } };
    assert.deepEqual((await objects.patch(labelled)).metadata.labels, { by: 'hand' });
    assert.equal((await objects.list('v1', 'Secret', namespace)).items.length, 1);
    assert.equal((await objects.delete(key)).status, 'Success');
}

class Sink extends Writable {
    text = '';
    _write(bytes, _encoding, done) {
        this.text += bytes;
        done();
    }
}

async function executed() {
    const accounts = async () => (await core.listNamespacedServiceAccount({ namespace })).items.map((own) => own.metadata.name);
    await eventually('pods may be made', async () => (await accounts()).includes('default'));
    const command = ['sh', '-c', 'echo up; sleep 1000'];
    const spec = { containers: [{ name: 'shell', image, command }] };
    await core.createNamespacedPod({ namespace, body: { metadata: { name: 'shell' }, spec } });
    let phase;
    const watched = await new k8s.Watch(config).watch(
        `/api/v1/namespaces/${namespace}/pods`,
        {},
        (_type, pod) => (phase = pod.status?.phase),
        () => {},
    );
    await eventually('the pod runs', () => phase === 'Running' || phase);
    watched.abort();
    const [out, err] = [new Sink(), new Sink()];
    let end;
    const script = ['sh', '-c', 'echo out; echo err >&2; exit 3'];
    await new k8s.Exec(config).exec(namespace, 'shell', 'shell', script, out, err, null, false, (status) => (end = status));
    await eventually('the program ends', () => (end !== undefined && out.text !== '' && err.text !== '') || [end, out.text, err.text]);
    assert.deepEqual([out.text, err.text], ['out\n', 'err\n']);
    assert.deepEqual(end.details.causes, [{ reason: 'ExitCode', message: '3' }]);
}

await typed();
await generic();
await executed();
await core.deleteNamespace({ name: namespace });
process.exit(0);
