// What attackers would do to the page and through it: each a part of the test that ui.mjs is.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { apply, eventually, heap, kube, pod, SCRIPT, visit } from './ui_tools.mjs';

/** A title is no markup, and a flood ends. */
export async function standsATerminal(page) {
    await page.keyboard.type(`printf '\\033]0;${SCRIPT}\\007'; yes | head -c 4194304; echo $((6 * 8))!\n`);
    await page.waitForSelector('.terminal .screen:has-text("48!")');
    assert.equal(await page.evaluate(() => window.hit), undefined, 'a title was obeyed');
}

export async function takesScriptsForText(page) {
    apply(
        { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'evil', namespace: 'default', annotations: { note: SCRIPT } }, data: { key: SCRIPT } },
        pod('evil', 'default', ['sh', '-c', `echo '${SCRIPT}'; exec sleep 1000`]),
        {
            apiVersion: 'v1', kind: 'Event', metadata: { name: 'evil', namespace: 'default' }, type: 'Warning', reason: 'Evil', message: SCRIPT,
            involvedObject: { apiVersion: 'v1', kind: 'ConfigMap', name: 'evil', namespace: 'default', uid: 'u' },
        },
    );
    // Of all names, those of roles alone may be a script; labels may not.
    const named = '<img src=x onerror="window.hit=1">';
    apply({ apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'ClusterRole', metadata: { name: named }, rules: [] });
    for (const labels of [{ note: SCRIPT }, { [SCRIPT]: 'note' }]) {
        const labelled = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'labelled', namespace: 'default', labels } };
        assert.throws(() => apply(labelled), /metadata\.labels: Invalid value/);
    }
    const roles = '#/objects/clusterroles.rbac.authorization.k8s.io';
    const uid = kube('get', 'configmap', 'evil', '-o', 'jsonpath={.metadata.uid}');
    kube('patch', 'event', 'evil', '--type=merge', '-p', JSON.stringify({ message: SCRIPT, count: 2 }));
    for (const [place, shown] of [
        ['#/objects/configmaps?in=default&name=evil', '.chip'],
        ['#/objects/configmaps?in=default&name=evil&tab=yaml', '.yaml'],
        ['#/objects/configmaps?in=default&name=evil&tab=edit', undefined],
        ['#/objects/events.events.k8s.io?in=default&name=evil', '.rows'],
        ['#/objects/pods?in=default&name=evil&tab=logs', '.log'],
        [roles, '.rows'],
        [`${roles}?name=${encodeURIComponent(named)}`, '.detail h1'],
        [`${roles}?name=${encodeURIComponent(named)}&tab=yaml`, '.yaml'],
        [`#/objects/${encodeURIComponent(SCRIPT)}?name=${encodeURIComponent(SCRIPT)}&in=${uid}`, undefined],
        [`#/flow/${encodeURIComponent(SCRIPT)}?in=${encodeURIComponent(SCRIPT)}`, undefined],
    ]) {
        await visit(page, place);
        if (shown) await page.waitForSelector(`${shown}:has-text("window.hit=1")`);
        await pause(200);
        assert.equal(await page.evaluate(() => window.hit), undefined, place);
        assert.equal(await page.locator('img[src="x"]').count(), 0, place);
    }
    kube('delete', 'clusterrole', named);
}

/** The server sends the end of it, and the page is no larger than with any other. */
export async function standsALargeLog(page) {
    const lines = 'yes "$(head -c 1000 /dev/zero | tr "\\0" x)" | head -c 1073741824; echo; echo the end; touch /tmp/written';
    apply(pod('large', 'default', ['sh', '-c', `${lines}; exec sleep 1000`]));
    kube('wait', '--for=condition=Ready', 'pod/large', '--timeout=120s');
    kube('exec', 'large', '--', 'sh', '-c', 'timeout 300 sh -c "until [ -e /tmp/written ]; do sleep 1; done"');
    await visit(page, '#/objects/pods?in=default&name=large&tab=logs');
    await page.waitForSelector('.log:has-text("the end")');
    const held = await heap(page);
    assert.ok(held < 96 << 20, `the page holds ${held} bytes`);
    kube('delete', 'pod', 'large', '--now');
}

/** The shell's own `echo`: a slow machine starts too few programs for a flood. */
const FLOOD = 'x=$(head -c 3000 /dev/zero | tr "\\0" x); while :; do for i in $(seq 500); do echo $x; echo short; done; sleep 0.05; done';
export async function standsAFlood(page) {
    apply(pod('flood', 'default', ['sh', '-c', FLOOD]));
    kube('wait', '--for=condition=Ready', 'pod/flood', '--timeout=120s');
    await visit(page, '#/objects/pods?in=default&name=flood&tab=logs');
    const told = page.locator('.panel [role="status"]');
    await eventually('lines have been dropped', async () => {
        const text = await told.textContent();
        return Number(/(\d+) older lines/.exec(text ?? '')?.[1] ?? 0) > 20_000 || text;
    });
    // What comes between the collection and the look at it counts, too.
    await eventually('the page holds no more than that', async () => {
        const held = await heap(page);
        return held < 96 << 20 || held;
    });
    assert.ok((await page.locator('.log p').count()) < 200, 'lines that nobody sees are drawn');
    kube('delete', 'pod', 'flood', '--now');
}

/** The other site is of the same host, whose cookies it shares. */
export async function standsOtherSites(context, base) {
    const elsewhere = createServer((_request, answer) => answer.setHeader('content-type', 'text/html').end('<p>elsewhere</p>'));
    await new Promise((resolve) => elsewhere.listen(0, '127.0.0.1', resolve));
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${elsewhere.address().port}/`);
    const planted = await page.evaluate(async (base) => {
        const pods = `${base}/api/v1/namespaces/default/pods`;
        const body = JSON.stringify({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'planted' } });
        const plain = { method: 'POST', credentials: 'include', mode: 'no-cors', body };
        await fetch(`${base}/api/v1/namespaces`, plain).catch(() => undefined);
        const own = { credentials: 'include', headers: { 'x-skiff-ui': '1' } };
        const read = await fetch(pods, own).then((answer) => answer.status, () => 'refused');
        const socket = new WebSocket(`${base.replace('https', 'wss')}/api/v1/namespaces/default/pods/evil/exec?command=id&stdout=true`, ['v5.channel.k8s.io']);
        const opened = await new Promise((resolve) => {
            socket.onopen = () => resolve('opened');
            socket.onerror = () => resolve('refused');
        });
        const frame = document.createElement('iframe');
        frame.src = `${base}/ui/`;
        document.body.append(frame);
        await new Promise((resolve) => (frame.onload = resolve));
        return [read, opened];
    }, base);
    assert.deepEqual(planted, ['refused', 'refused']);
    const frame = page.frames().find((one) => one !== page.mainFrame());
    assert.equal(await frame.locator('#app, #login').count(), 0, 'the page is in a frame');
    assert.equal(kube('get', 'namespaces', '-o', 'name').includes('planted'), false);
    elsewhere.close();
    elsewhere.closeAllConnections();
    await page.close();
}
