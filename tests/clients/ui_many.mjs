// The page with thousands of pods, in a real browser against a control plane alone: the list is quick to use, follows what
// changes, and asks for nothing meanwhile.
//
// usage: node ui_many.mjs PLAYWRIGHT SKIFF KUBECTL STATE    (the folder of playwright-core)

import assert from 'node:assert/strict';
import { Agent, request } from 'node:https';
import { setTimeout as pause } from 'node:timers/promises';
import { errors, eventually, heap, kube, launch, logsIn, show, visit, window } from './ui_tools.mjs';

const COUNT = 5000;
const ROUNDS = 20;
/** Milliseconds within which a lone change is drawn: those that come together wait longer than that. */
const QUICK = 200;
const WORKERS = 20;
const NAMESPACES = ['many-0', 'many-1', 'many-2', 'many-3', 'many-4'];
/** What the page asks for now and then however quiet it is: the session stays open, usage is drawn. */
const ASKED = /\/ui\/session|\/ui\/measures\/|\/apis\/metrics\.k8s\.io\//;

const { clusters, users } = JSON.parse(kube('config', 'view', '--raw', '-o', 'json'));
const [server, user] = [clusters[0].cluster, users[0].user];
const [ca, cert, key] = [server['certificate-authority-data'], user['client-certificate-data'], user['client-key-data']].map((data) => Buffer.from(data, 'base64'));
const agent = new Agent({ keepAlive: true, maxSockets: WORKERS, ca, cert, key });

function api(method, path, body, type = 'application/json') {
    return new Promise((resolve, reject) => {
        const sent = request(server.server + path, { agent, method, headers: { 'content-type': type } }, (answer) => {
            let told = '';
            answer.setEncoding('utf8').on('data', (piece) => (told += piece)).on('error', reject);
            answer.on('end', () => (answer.statusCode < 300 ? resolve() : reject(new Error(`${method} ${path}: ${told}`))));
        });
        sent.on('error', reject).end(body && JSON.stringify(body));
    });
}

const place = (namespace, name = '') => `/api/v1/namespaces/${namespace}/pods/${name}`.replace(/\/$/, '');
const nameOf = (number) => `pod-${String(number).padStart(4, '0')}`;
const namespaceOf = (number) => NAMESPACES[number % NAMESPACES.length];

/** A pod that no scheduler takes. */
function create(namespace, name) {
    const spec = { schedulingGates: [{ name: 'test.local/never' }], containers: [{ name: 'c', image: 'none' }] };
    return api('POST', place(namespace), { apiVersion: 'v1', kind: 'Pod', metadata: { name }, spec });
}

async function createsPods() {
    for (const name of NAMESPACES) kube('create', 'namespace', name);
    await eventually('pods may be made', () => {
        const told = kube('get', 'serviceaccounts', '-A', '--no-headers');
        return NAMESPACES.every((name) => new RegExp(`^${name} +default `, 'm').test(told)) || told;
    });
    let next = 0;
    const work = async () => {
        while (next < COUNT) {
            const number = next++;
            await create(namespaceOf(number), nameOf(number));
        }
    };
    await Promise.all(Array.from({ length: WORKERS }, work));
    // The server closes connections that are idle for a minute, maybe at the moment of the next request.
    agent.destroy();
}

/** The time at which a frame is drawn in which the count says so. */
async function counts(page, shown, total) {
    const said = (wanted) => document.querySelector('.list [role="status"]')?.textContent === wanted && Date.now();
    const seen = await page.waitForFunction(said, `${shown} of ${total}`);
    return seen.jsonValue();
}

/** Changes something through the API; the milliseconds from its answer to the frame that shows the new count. */
async function follows(page, shown, total, change) {
    const [seen, answered] = await Promise.all([counts(page, shown, total), change().then(() => Date.now())]);
    return seen - answered;
}

const rows = (page) => page.locator('.rows .row').evaluateAll((all) => {
    const own = all.sort((one, other) => one.dataset.row - other.dataset.row);
    return own.map((row) => [row.dataset.row, ...[...row.querySelectorAll('[role="gridcell"]')].slice(0, 2).map((cell) => cell.textContent)].join(' '));
});

/** The rows that are drawn begin, or end, the list in this order of numbers. */
async function draws(page, what, numbers, atEnd = false) {
    await eventually(what, async () => {
        const all = await rows(page);
        const from = atEnd ? COUNT - all.length : 0;
        const wanted = numbers.slice(from, from + all.length).map((number, at) => `${from + at} ${namespaceOf(number)} ${nameOf(number)}`);
        return (all.length > 10 && all.length < 100 && all.join() === wanted.join()) || all;
    });
}

/** One row alone: what is beyond the end of a list that became short is drawn a frame later. */
async function drawsOne(page, namespace, name) {
    await eventually(`${name} alone is listed`, async () => {
        const all = await rows(page);
        return all.join() === `0 ${namespace} ${name}` || all;
    });
}

async function sortsAndScrolls(page) {
    const byName = Array.from({ length: COUNT }, (_, number) => number);
    const byPlace = [...byName].sort((one, other) => (one % NAMESPACES.length) - (other % NAMESPACES.length) || one - other);
    await draws(page, 'they are ordered by namespace and name', byPlace);
    await page.locator('.grid .scroll').evaluate((body) => (body.scrollTop = body.scrollHeight));
    await draws(page, 'the last are seen at the end', byPlace, true);
    await page.getByRole('columnheader', { name: 'Name', exact: true }).getByRole('button').click();
    await draws(page, 'they are sorted by name', byName, true);
    await page.getByRole('columnheader', { name: 'Name ↑' }).getByRole('button').click();
    await draws(page, 'they are sorted by name, the last first', byName.reverse(), true);
    await page.locator('.rows .row').last().focus();
    await page.keyboard.press('Home');
    await page.waitForSelector(`.rows .row:focus:has-text("${nameOf(COUNT - 1)}")`);
    await page.keyboard.press('End');
    await page.waitForSelector(`.rows .row:focus:has-text("${nameOf(0)}")`);
}

/** What is changed through the API is on the screen without being asked for; the times that it took. */
async function followsChanges(page, staysQuiet) {
    const filter = page.getByLabel('Filter');
    await filter.fill(nameOf(2500));
    await counts(page, 1, COUNT);
    await drawsOne(page, namespaceOf(2500), nameOf(2500));
    await follows(page, 0, COUNT - 1, () => api('DELETE', place(namespaceOf(2500), nameOf(2500))));
    await filter.fill('fresh');
    await counts(page, 0, COUNT - 1);
    await follows(page, 1, COUNT, () => create('many-3', 'fresh'));
    await drawsOne(page, 'many-3', 'fresh');
    await filter.fill('marked=yes');
    await counts(page, 0, COUNT);
    const times = [];
    // More of them on a machine that is busy for a while.
    for (let round = 1; round <= ROUNDS || (round <= 5 * ROUNDS && Math.min(...times) >= QUICK); round += 1) {
        // Changes that come one upon another are drawn together.
        await staysQuiet(300);
        const labels = { metadata: { labels: { marked: 'yes' } } };
        const change = () => api('PATCH', place(namespaceOf(round), nameOf(round)), labels, 'application/merge-patch+json');
        times.push(await follows(page, round, COUNT, change));
    }
    return times.sort((one, other) => one - other);
}

const browser = await launch();
try {
    const { page } = await window(browser);
    await logsIn(page);
    page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
    await page.locator('.namespace select').selectOption('');
    await visit(page, '#/objects/pods');
    await counts(page, 0, 0);
    await createsPods();
    await counts(page, COUNT, COUNT);

    const asked = [];
    page.on('request', (own) => asked.push(own.url()));
    await page.reload({ waitUntil: 'commit' });
    const listed = (await counts(page, COUNT, COUNT)) - (await page.evaluate(() => performance.timeOrigin));
    const [paint] = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint').map((own) => own.startTime));
    await sortsAndScrolls(page);
    await eventually('the page watches all that it shows', () => {
        const watched = new Set(asked.filter((url) => url.includes('watch=true')).map((url) => new URL(url).pathname.split('/').at(-1)));
        return [...watched].sort().join() === 'deployments,events,namespaces,nodes,pods' || [...watched];
    });
    asked.length = 0;
    const staysQuiet = async (time) => {
        await pause(time);
        assert.deepEqual(asked.filter((url) => !ASKED.test(url)), [], 'the page asks, though its watches tell it everything');
    };
    await staysQuiet(2000);
    const times = await followsChanges(page, staysQuiet);
    assert.ok(times[0] < QUICK, `even the quickest change was drawn late: ${times}`);
    const figures = [
        `first paint ${Math.round(paint)} ms`,
        `${COUNT} pods listed after ${Math.round(listed)} ms`,
        `a change on the screen after ${times[times.length >> 1]} ms (p50 of ${times.length}, ${times.at(0)} to ${times.at(-1)})`,
        `${((await heap(page)) / 2 ** 20).toFixed(1)} MiB of JS heap`,
    ];
    console.log(figures.join(', '));
    assert.deepEqual(errors, []);
} catch (error) {
    await show(browser);
    throw error;
} finally {
    await browser.close();
    agent.destroy();
}
