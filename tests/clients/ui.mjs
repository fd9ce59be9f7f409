// The page in a real browser, as a person uses it, and as an attacker would (ui_attacks.mjs).
//
// usage: node ui.mjs PLAYWRIGHT SKIFF KUBECTL STATE IMAGE    (the folder of playwright-core; the image has nginx and a shell)

import assert from 'node:assert/strict';
import { connect, createServer as listener } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { standsAFlood, standsALargeLog, standsATerminal, standsOtherSites, takesScriptsForText } from './ui_attacks.mjs';
import { apply, errors, eventually, hasBegun, image, isRevision, kube, launch, link, logsIn, namespace, pod, show, standsAxe, trace, visit, window } from './ui_tools.mjs';

async function logsInOnce(browser) {
    const { context, page } = await window(browser);
    const used = link();
    await page.goto(used);
    // Another site may have opened it.
    await page.waitForSelector('text=Did you ask for this link');
    await page.keyboard.press('Enter');
    assert.deepEqual(await context.cookies(), [], 'a session that nobody asked for');
    await page.getByRole('button', { name: 'Log in' }).click();
    await page.waitForSelector('header .user:has-text("kubernetes-admin")');
    assert.equal(new URL(page.url()).hash.includes('code'), false, page.url());
    const [cookie] = await context.cookies();
    assert.deepEqual([cookie.httpOnly, cookie.secure, cookie.sameSite], [true, true, 'Lax']);
    const other = await window(browser);
    await other.page.goto(used);
    await other.page.getByRole('button', { name: 'Log in' }).click();
    await other.page.waitForSelector('.failure:has-text("used already")');
    assert.equal(await other.page.locator('header').count(), 0);
    await other.context.close();
    return { context, page, base: new URL(used).origin };
}

/** A link takes the place of a session only where that is wanted. */
async function changesTheSession(context, page) {
    const cookie = async () => (await context.cookies())[0].value;
    const before = await cookie();
    await page.goto(link());
    await page.waitForSelector('text=A session of kubernetes-admin is open');
    await page.getByRole('button', { name: 'Stay kubernetes-admin' }).click();
    // What is on its way when the session ends is refused.
    await hasBegun(page);
    assert.equal(await cookie(), before);
    const other = await context.newPage();
    await logsIn(other);
    assert.notEqual(await cookie(), before);
    await other.close();
}

async function showsThePast(page) {
    kube('create', 'configmap', 'was', '--from-literal=mode=then');
    await pause(1100);
    const then = Math.floor(Date.now() / 1000) * 1000;
    kube('delete', 'configmap', 'was');
    await visit(page, '#/objects/configmaps');
    await page.waitForSelector('.rows .row:has-text("kube-root-ca.crt")');
    assert.equal(await page.locator('.rows .row:has-text("was")').count(), 0);
    await page.getByRole('button', { name: 'The past' }).click();
    const field = page.locator('input[type="datetime-local"]');
    const local = await page.evaluate((then) => new Date(then - new Date(then).getTimezoneOffset() * 60_000).toISOString().slice(0, 19), then);
    // Browsers drop seconds that are zero, and Playwright takes any value that is not kept as it was typed for malformed.
    await field.fill(local.replace(/:00$/, ''));
    await field.blur();
    await page.locator('.rows .row', { hasText: 'was' }).click();
    await page.getByRole('tab', { name: 'YAML' }).click();
    await page.waitForSelector('.yaml:has-text("mode: then")');
    assert.equal(await page.getByRole('tab', { name: 'Edit' }).count(), 0, 'the past is edited');
    await page.getByRole('button', { name: 'Back to now' }).click();
    await page.waitForSelector('text=This object has been deleted.');
    await eventually('it is not listed now', async () => (await page.locator('.rows .row:has-text("was")').count()) === 0);
}

async function tellsWhatGoesWrong(page) {
    // A toast goes after some seconds, in which kubectl may not yet have ended.
    await page.evaluate(() => {
        const look = () => document.querySelector('.toast')?.checkVisibility() && (globalThis.toasted = true);
        new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
    });
    const labels = { app: 'late' };
    const template = { metadata: { labels }, spec: { containers: [{ name: 'c', image: 'localhost:1/none:1' }] } };
    apply(
        {
            apiVersion: 'apps/v1', kind: 'Deployment', metadata: { name: 'late', namespace: 'default' },
            spec: { progressDeadlineSeconds: 1, selector: { matchLabels: labels }, template },
        },
        pod('crash', 'default', ['sh', '-c', 'echo last words; exit 1']),
    );
    await page.waitForFunction(() => globalThis.toasted);
    await page.getByRole('button', { name: 'problems' }).click();
    await page.waitForSelector('.notices li:has-text("ProgressDeadlineExceeded")');
    await page.waitForSelector('.notices li:has-text("Back-off restarting failed container")');
    kube('delete', 'deployment', 'late');
    await page.waitForFunction(() => !document.querySelector('.notices')?.textContent.includes('ProgressDeadlineExceeded'));
    await page.getByRole('button', { name: 'problems' }).click();
    await visit(page, '#/objects/pods?in=default&name=crash&tab=logs');
    await page.getByLabel('Previous instance').check();
    await page.waitForSelector('.log:has-text("last words")');
    kube('delete', 'pod', 'crash', '--now');
}

async function drawsMeasures(page) {
    const node = kube('get', 'nodes', '-o', 'jsonpath={.items[0].metadata.name}');
    await visit(page, `#/objects/nodes?name=${node}`);
    await eventually('the usage of the node is drawn', async () => {
        await page.reload();
        await page.waitForSelector('.detail :text("Usage")');
        return (await page.locator('.plots polyline').count()) === 2;
    });
}

async function showsTheFlow(page) {
    await visit(page, '#/flow');
    await page.waitForSelector('text=There is no workload here yet');
    kube('create', 'deployment', 'web', `--image=${image}`, '--replicas=3');
    const times = page.locator('.picture g.lit text.time');
    await eventually('every arrow has its time', async () => {
        const told = await times.allTextContents();
        return (told.length === 9 && told.every((time) => /^[\d.–]+ m?s$/.test(time))) || told;
    });
    await page.waitForSelector('.big:text-matches("^[0-9.]+ ms$")');
    await eventually('every step has its time', async () => {
        const rows = await page.locator('.frame tbody tr').allTextContents();
        return (rows.length === 16 && !rows.some((row) => row.includes('unknown'))) || rows;
    });
    await eventually('the times are those of skiff trace', async () => {
        const cells = (all) => all.map((row) => [1, 2].map((at) => row.cells[at].textContent));
        const drawn = await page.locator('.frame tbody tr').evaluateAll(cells);
        const traced = trace('deployment/web').split('\n').slice(2, 18).map((row) => row.replaceAll(' ms', '').split(/ {2,}/).slice(1, 3));
        const near = (one, other) => Number.isNaN(one) === Number.isNaN(other) && !(Math.abs(one - other) > 1);
        const same = drawn.every((row, number) => row.every((time, at) => near(Number(time), Number(traced[number]?.[at]))));
        return same || { drawn, traced };
    });
    const links = await page.locator('.frame tbody tr').first().locator('a').evaluateAll((all) => all.map((own) => own.hash));
    assert.match(links.join(' '), /^#\/objects\/deployments\.apps\?in=default&name=web #\/audit\?words=create\+deployments\+default&at=/);
    await page.getByLabel('Speed of the replay').selectOption('0.25×');
    // It is there for ten seconds.
    await Promise.all([page.waitForSelector('.picture .pulse', { state: 'attached' }), page.getByRole('button', { name: 'Replay' }).click()]);
    await page.getByLabel('Speed of the replay').selectOption('4×');
    await eventually('the replay has ended', async () => (await page.locator('.picture g.lit text.time').count()) === 9);
}

async function showsAPod(page) {
    await visit(page, '#/objects/pods');
    await page.locator('.rows .row', { hasText: 'web-' }).first().click();
    await page.waitForSelector('.detail :text("Ready=True")');
    await page.waitForSelector('.detail :text("Started")');
    await page.waitForSelector('.tree li:has(> a:text-is("Deployment/web")) li:has(> a:has-text("ReplicaSet/web-")) b:has-text("Pod/web-")');
    await page.getByRole('tab', { name: 'YAML' }).click();
    await page.waitForSelector('.yaml:has-text("ownerReferences:")');
    await page.getByRole('tab', { name: 'Logs' }).click();
    await page.waitForSelector('.log:has-text("start worker process")');
    await page.getByLabel('Search').fill('epoll');
    await page.waitForSelector('.log mark:has-text("epoll")');
    await page.getByRole('tab', { name: 'Terminal' }).click();
    await page.getByRole('button', { name: 'Open' }).click();
    await page.waitForSelector('.terminal .cursor');
    await page.keyboard.type('echo $((6 * 7))!\n');
    await page.waitForSelector('.terminal .screen:has-text("42!")');
    await standsATerminal(page);
    await page.keyboard.type('exit\n');
    await page.waitForSelector('text=The program has ended.');
}

async function forwardsAService(page) {
    kube('expose', 'deployment', 'web', '--port=80');
    await visit(page, '#/objects/services?in=default&name=web');
    await page.waitForSelector('.detail code:text-is("kubectl port-forward --namespace default service/web 8080:80")');
    kube('delete', 'service', 'web');
}

/** An image that is not there: the page says why, shows what going back would change, and goes back. */
async function breaksTheImage(page) {
    kube('set', 'image', 'deployment/web', '*=localhost:1/none:1');
    await page.getByRole('tab', { name: 'Overview' }).click();
    await page.waitForSelector('.card p:has-text("cannot be pulled: localhost:1/none:1")');
    await isRevision(2);
    await page.getByRole('button', { name: 'Undo rollout' }).click();
    await page.waitForSelector('dialog .difference del:has-text("localhost:1/none:1")');
    await page.waitForSelector(`dialog .difference ins:has-text("${image}")`);
    await page.locator('dialog').getByRole('button', { name: 'Undo rollout' }).click();
    await isRevision(3);
    await page.waitForSelector('.card p', { state: 'detached' });
}

/** Every line has its pod's name before it, and every pod a color. */
async function showsLogsTogether(page, count) {
    await page.getByRole('tab', { name: 'Logs' }).click();
    await page.getByLabel('Search').fill('start worker processes');
    await page.getByLabel('Matching lines only').check();
    await eventually('the log of each pod is in the pane', async () => {
        const names = await page.locator('.log p b').allTextContents();
        const colors = await page.locator('.log p b').evaluateAll((all) => all.map((own) => own.className));
        const distinct = [names, colors].map((all) => new Set(all).size);
        return distinct.every((own) => own === count) || names;
    });
    const pods = kube('get', 'pods', '-l', 'app=web', '-o', 'jsonpath={.items[*].metadata.name}').split(' ').sort();
    assert.deepEqual((await page.locator('.log p b').allTextContents()).map((name) => name.trim()).sort(), pods);
}

async function changesADeployment(page) {
    await visit(page, '#/objects/deployments.apps?in=default&name=web');
    await page.getByRole('button', { name: 'Scale' }).click();
    await page.getByLabel('Replicas').fill('4');
    await page.locator('dialog').getByRole('button', { name: 'Scale' }).click();
    await page.waitForSelector('.rows .row:has-text("4/4")');
    await showsLogsTogether(page, 4);
    await page.getByRole('tab', { name: 'Edit' }).click();
    const text = page.locator('textarea.edit');
    await eventually('the YAML is there', async () => (await text.inputValue()).includes('replicas: 4'));
    await text.fill((await text.inputValue()).replace('replicas: 4', 'replicas: 2'));
    await page.getByRole('button', { name: 'Check', exact: true }).click();
    await page.getByRole('button', { name: 'take the fields over' }).click();
    await page.waitForSelector('.difference ins:has-text("replicas: 2")');
    assert.equal(kube('get', 'deployment', 'web', '-o', 'jsonpath={.spec.replicas}'), '4', 'a dry run stores nothing');
    await page.getByRole('button', { name: 'Apply' }).click();
    await page.waitForSelector('text=Applied.');
    await page.waitForSelector('.rows .row:has-text("2/2")');
    await breaksTheImage(page);
    for (const [now, next] of [['Pause', 'Resume'], ['Resume', 'Pause']]) {
        await page.getByRole('button', { name: `${now} rollout` }).click();
        await page.waitForSelector('dialog .difference:has-text("paused")');
        await page.locator('dialog').getByRole('button', { name: `${now} rollout` }).click();
        await page.getByRole('button', { name: `${next} rollout` }).waitFor();
    }
    await page.getByRole('button', { name: 'Restart' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Restart' }).click();
    await isRevision(4);
    await page.getByRole('button', { name: 'Undo rollout' }).click();
    await page.locator('dialog option').first().waitFor({ state: 'attached' });
    await page.waitForSelector('dialog .difference:has-text("restartedAt")');
    // The revision that would be gone back to, and the broken one before it.
    await page.getByLabel('What changes, compared with revision').selectOption({ index: 2 });
    await page.waitForSelector('dialog .difference del:has-text("localhost:1/none:1")');
    await page.waitForSelector(`dialog .difference ins:has-text("${image}")`);
    const restarted = '{.spec.template.metadata.annotations}';
    assert.match(kube('get', 'deployment', 'web', '-o', `jsonpath=${restarted}`), /restartedAt/, 'a dry run stores nothing');
    await page.locator('dialog').getByRole('button', { name: 'Undo rollout' }).click();
    await eventually('the template is the first again', () => {
        const told = kube('get', 'deployment', 'web', '-o', `jsonpath=${restarted}`);
        return told === '' || told;
    });
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
    const deleted = page.getByText('This object has been deleted.');
    await deleted.waitFor();
    await page.getByRole('tab', { name: 'History' }).click();
    await page.getByRole('button', { name: 'Undelete' }).click();
    await deleted.waitFor({ state: 'detached' });
    assert.equal(kube('get', 'deployment', 'web', '-o', 'jsonpath={.spec.template.spec.containers[*].image}'), image);
    kube('delete', 'deployment', 'web');
    await deleted.waitFor();
}

/** Two objects in the page's own editor: the server says first what it would make. */
async function appliesAText(page) {
    await visit(page, '#/apply');
    const text = page.locator('textarea.edit');
    await eventually('there is an example', async () => (await text.inputValue()).includes('kind: Deployment'));
    const labels = { app: 'made' };
    const template = { metadata: { labels }, spec: { containers: [{ name: 'c', image }] } };
    const settings = 'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: made\ndata:\n  mode: fast\n';
    const spec = JSON.stringify({ selector: { matchLabels: labels }, template });
    await text.fill(`${settings}---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: made\nspec: ${spec}\n`);
    await page.getByRole('button', { name: 'Check', exact: true }).click();
    await page.waitForSelector('.difference ins:has-text("mode: fast")');
    await page.waitForSelector('.difference ins:has-text("replicas: 1")');
    assert.equal(kube('get', 'configmaps', '-o', 'name').includes('made'), false, 'a dry run stores nothing');
    await page.getByRole('button', { name: 'Apply', exact: true }).click();
    await page.getByRole('link', { name: 'Deployment/made' }).click();
    await page.waitForSelector('.rows .row:has-text("1/1")');
    await page.getByRole('link', { name: 'Show the flow' }).click();
    await page.waitForSelector('.big:has-text("ms")');
    await visit(page, '#/apply');
    await text.fill('kind: Nonsense');
    await page.getByRole('button', { name: 'Check', exact: true }).click();
    await page.waitForSelector('.failure:has-text("No object that the server knows")');
    kube('delete', 'deployment/made', 'configmap/made');
}

/** From a list to an object's YAML without a mouse. */
async function worksByKeyboard(page) {
    const reaches = async (selector) => {
        for (let steps = 0; steps < 40; steps += 1) {
            await page.keyboard.press('Tab');
            if (await page.evaluate((selector) => document.activeElement.matches(selector), selector)) return;
        }
        assert.fail(`${selector} is not reached by Tab`);
    };
    await visit(page, '#/objects/configmaps');
    await page.waitForSelector('.rows .row:has-text("kube-root-ca.crt")');
    await page.keyboard.press('/');
    await page.keyboard.type('root-ca');
    await reaches('.rows .row');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.detail h1:has-text("kube-root-ca.crt")');
    await reaches('[role="tab"]');
    await page.keyboard.press('ArrowRight');
    await page.waitForSelector('[role="tab"][aria-selected="true"]:focus:has-text("YAML")');
    await page.waitForSelector('.yaml:has-text("name: kube-root-ca.crt")');
}

async function speaksKorean(page) {
    await page.getByRole('button', { name: '한국어' }).click();
    await page.waitForSelector('html[lang="ko"] nav a:text-is("감사 로그")');
    await standsAxe(page, '#/cluster', '#/flow', '#/access');
    await page.getByRole('button', { name: 'English' }).click();
    await page.waitForSelector('html[lang="en"] nav a:text-is("Audit log")');
}

async function showsNoMoreThanKubectl(browser, base) {
    await namespace('team');
    kube('create', 'serviceaccount', 'guest', '-n', 'team');
    kube('create', 'role', 'guest', '-n', 'team', '--verb=get,list,watch', '--resource=pods');
    kube('create', 'rolebinding', 'guest', '-n', 'team', '--role=guest', '--serviceaccount=team:guest');
    apply(pod('seen', 'team', ['sleep', '1000']));
    const token = kube('create', 'token', 'guest', '-n', 'team').trim();
    const { context, page } = await window(browser);
    await page.goto(`${base}/ui/`);
    await page.getByLabel('bearer token').fill('nonsense');
    await page.getByRole('button', { name: 'Log in' }).click();
    await page.waitForSelector('.failure:has-text("does not accept")');
    await page.getByLabel('bearer token').fill(token);
    await page.getByRole('button', { name: 'Log in' }).click();
    await page.waitForSelector('header .user:has-text("system:serviceaccount:team:guest")');
    await page.waitForSelector('.failure:has-text("cannot list resource")');
    assert.equal(await page.locator('.square[href]').count(), 0, 'pods of others');
    await page.locator('.namespace input').fill('team');
    await page.locator('.namespace input').blur();
    await visit(page, '#/objects/pods');
    await page.waitForSelector('.rows .row:has-text("seen")');
    await visit(page, '#/objects/secrets');
    await page.waitForSelector('.failure:has-text("secrets is forbidden")');
    await visit(page, '#/access');
    await page.waitForSelector('tr:has-text("pods") td.good');
    assert.equal(await page.locator('tr:has(th:text-is("secrets")) td.good').count(), 0);
    await page.waitForSelector('text=Only your own rights are shown');
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.waitForSelector('#token');
    await context.close();
}

async function showsRightsOfOthers(page) {
    await visit(page, '#/access');
    await page.locator('.namespace select').selectOption('team');
    await page.getByLabel('User', { exact: true }).fill('system:serviceaccount:team:guest');
    await page.getByRole('button', { name: 'Show the rights' }).click();
    await page.waitForSelector('h1:text-is("What system:serviceaccount:team:guest may do")');
    await page.waitForFunction(() => !document.querySelector('.matrix').textContent.includes('…'));
    assert.equal(await page.locator('tr:has(th:text-is("pods")) td.good').count(), 3);
    assert.equal(await page.locator('tr:has(th:text-is("secrets")) td.good').count(), 0);
    await page.getByRole('button', { name: 'Back to your own' }).click();
    await page.waitForSelector('tr:has(th:text-is("secrets")) td.good');
    await page.locator('.namespace select').selectOption('default');
}

/** The way to the server breaks: the page says so, and goes on by itself once there is a way again. */
async function healsWhatIsCut(browser, base) {
    // Nothing comes through this process while it waits for kubectl.
    apply(pod('teller', 'default', ['sh', '-c', 'i=0; while :; do i=$((i + 1)); echo told $i; sleep 1; done']));
    kube('wait', '--for=condition=Ready', 'pod/teller', '--timeout=120s');
    const { hostname, port } = new URL(base);
    const open = new Set();
    let cut = false;
    const way = listener((near) => {
        if (cut) return near.destroy();
        const far = connect(Number(port), hostname);
        for (const end of [near, far]) {
            open.add(end);
            end.on('error', () => undefined);
            end.on('close', () => (near.destroy(), far.destroy(), open.delete(end)));
        }
        near.pipe(far).pipe(near);
    });
    await new Promise((resolve) => way.listen(0, hostname, resolve));
    const own = way.address().port;
    const { context, page } = await window(browser);
    await logsIn(page, link().replace(`:${port}`, `:${own}`));
    await visit(page, '#/objects/pods?in=default&name=teller&tab=logs');
    await page.waitForSelector('.log:has-text("told")');
    await page.waitForSelector('.rows .row:has-text("teller")');
    cut = true;
    for (const end of open) end.destroy();
    await page.waitForSelector('.list .failure:has-text("The connection was lost")');
    apply(pod('meanwhile', 'default', ['sleep', '1000']));
    cut = false;
    await page.waitForSelector('.rows .row:has-text("meanwhile")');
    await page.waitForSelector('.list .failure', { state: 'detached' });
    await page.waitForSelector('.panel .failure', { state: 'detached' });
    const last = async () => Number((await page.locator('.log p').last().textContent()).split(' ').at(-1));
    const before = await last();
    await eventually('the log goes on', async () => (await last()) > before || before);
    const lines = await page.locator('.log p').allTextContents();
    assert.equal(new Set(lines).size, lines.length, 'lines come twice');
    await context.close();
    way.close();
    kube('delete', 'pod', 'teller', 'meanwhile', '--now');
}

const browser = await launch();
try {
    const { context, page, base } = await logsInOnce(browser);
    await changesTheSession(context, page);
    await showsTheFlow(page);
    await showsAPod(page);
    const web = '#/objects/deployments.apps?in=default&name=web';
    await standsAxe(
        page, '#/cluster', '#/flow', '#/apply', '#/access', '#/audit', '#/objects/pods', web, `${web}&tab=yaml`, `${web}&tab=history`, `${web}&tab=logs`, `${web}&tab=edit`,
    );
    await page.setViewportSize({ width: 380, height: 740 });
    await standsAxe(page, '#/cluster', web);
    await page.setViewportSize({ width: 1400, height: 900 });
    await speaksKorean(page);
    await worksByKeyboard(page);
    await forwardsAService(page);
    await changesADeployment(page);
    await appliesAText(page);
    await takesScriptsForText(page);
    await standsOtherSites(context, base);
    await healsWhatIsCut(browser, base);
    // Before the past: a page that comes back from there takes what it hears first for old.
    await tellsWhatGoesWrong(page);
    await showsThePast(page);
    await standsALargeLog(page);
    await standsAFlood(page);
    await showsNoMoreThanKubectl(browser, base);
    await showsRightsOfOthers(page);
    await drawsMeasures(page);
    assert.deepEqual(errors, []);
} catch (error) {
    await show(browser);
    throw error;
} finally {
    await browser.close();
}
