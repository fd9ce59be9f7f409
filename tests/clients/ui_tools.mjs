// A browser and a cluster, for the tests of the page.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';

const [playwright, skiff, kubectl, state] = process.argv.slice(2);
const axe = readFileSync(`${playwright}/../axe-core/axe.min.js`, 'utf8');
const { chromium } = (await import(`${playwright}/index.js`)).default;
export const image = process.argv[6];
const run = (program, words, input) => execFileSync(program, words, { encoding: 'utf8', input, stdio: 'pipe' });
export const kube = (...words) => run(kubectl, ['--kubeconfig', `${state}/admin.kubeconfig`, '--cache-dir', `${state}/kubectl-cache/ui`, ...words]);
export const apply = (...objects) => {
    const list = { apiVersion: 'v1', kind: 'List', items: objects };
    run(kubectl, ['--kubeconfig', `${state}/admin.kubeconfig`, 'apply', '-f', '-'], JSON.stringify(list));
};
export const link = () => run(skiff, ['ui', '--no-open', '--state-dir', state]).trim();
export const trace = (target) => run(skiff, ['trace', target, '--state-dir', state]);
export const SCRIPT = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>';

/** Asks until the probe says true; one that fails is asked again, too. */
export async function eventually(what, probe) {
    let last;
    for (const until = performance.now() + 300_000; performance.now() < until; await pause(100)) {
        last = await new Promise((resolve) => resolve(probe())).catch(String);
        if (last === true) return;
    }
    assert.fail(`${what}: last seen ${JSON.stringify(last)}`);
}

/** The controller has numbered a Deployment's newest template: what is undone from then on is that. */
export const isRevision = (number) =>
    eventually(`there is revision ${number}`, () => {
        const told = kube('get', 'replicasets', '-o', 'jsonpath={.items[*].metadata.annotations.deployment\\.kubernetes\\.io/revision}');
        return told.split(' ').includes(String(number)) || told;
    });

/** A namespace in which pods may be made. */
export async function namespace(name) {
    kube('create', 'namespace', name);
    await eventually('pods may be made', () => kube('get', 'serviceaccounts', '-n', name, '-o', 'name').includes('/default'));
}

export const pod = (name, namespace, command) => ({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace },
    spec: { terminationGracePeriodSeconds: 0, containers: [{ name: 'c', image, command }] },
});

export const errors = [];
/** A browser window of its own, with nothing of the others. */
export async function window(browser) {
    const context = await browser.newContext({ ignoreHTTPSErrors: true, locale: 'en', viewport: { width: 1400, height: 900 } });
    context.setDefaultTimeout(120_000);
    const page = await context.newPage();
    page.on('pageerror', (error) => errors.push(String(error)));
    page.on('console', (message) => {
        if (/Content Security Policy|TrustedHTML/.test(message.text())) errors.push(message.text());
    });
    return { context, page };
}

export const launch = () => chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    timeout: 120_000,
    args: [
        '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
        '--disable-component-update', '--disable-sync',
    ],
});

/** Waits until the page has all that it asks for once: the session, the kinds, and at last the namespaces. */
export async function hasBegun(page) {
    await page.waitForSelector('header .user:has-text("kubernetes-admin")');
    await page.waitForSelector('.namespace select');
}

export async function logsIn(page, used = link()) {
    await page.goto(used);
    await page.getByRole('button', { name: 'Log in' }).click();
    await hasBegun(page);
}

/** Bytes that are left of the page's objects once what nobody holds is collected. */
export async function heap(page) {
    const client = await page.context().newCDPSession(page);
    await client.send('HeapProfiler.collectGarbage');
    const { usedSize } = await client.send('Runtime.getHeapUsage');
    await client.detach();
    return usedSize;
}

/** What each window shows, for those who read of a failure. */
export async function show(browser) {
    for (const page of browser.contexts().flatMap((own) => own.pages())) {
        const text = await page.locator('body').innerText({ timeout: 5000 }).catch(String);
        console.error(`${page.url()}\n${text.slice(0, 6000)}\n`);
    }
}

/** The page hears of a new address a moment later: until then the old view is shown. */
export async function visit(page, place) {
    const gone = (hash) =>
        new Promise((resolve) => {
            if (location.hash === hash) return resolve();
            addEventListener('hashchange', () => resolve(), { once: true });
            location.hash = hash;
        });
    await page.evaluate(gone, place);
}

/** Folder of pictures of each place that axe looks at, for people who want to look, too. */
const pictures = process.env.SKIFF_SCREENSHOTS;
let taken = 0;

/** What axe knows of names, roles, structure and contrast, in both themes. */
export async function standsAxe(page, ...places) {
    await page.evaluate(axe);
    for (const place of places) {
        await visit(page, place);
        await page.waitForFunction(() => {
            const view = document.querySelector('main');
            return view.querySelector('h1') && !/Loading|불러오는 중/.test(view.textContent);
        });
        for (const colorScheme of ['dark', 'light']) {
            await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
            const found = await page.evaluate(async () => {
                const { violations } = await globalThis.axe.run(document, { preload: false, resultTypes: ['violations'] });
                return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join(' ')}`);
            });
            assert.deepEqual(found, [], `${place}, ${colorScheme}`);
            if (pictures) await page.screenshot({ path: `${pictures}/${(taken += 1)}-${colorScheme}.png` });
        }
    }
    await page.emulateMedia({ colorScheme: null, reducedMotion: null });
}
