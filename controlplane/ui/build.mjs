// Builds the page into a folder (dist/, or the one that is named): each file compressed, and the same from the same sources.
import { build, transform } from 'esbuild';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { compile, compileModule } from 'svelte/compiler';

const root = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(root, 'dist');

const svelte = {
    name: 'svelte',
    setup(plugin) {
        plugin.onLoad({ filter: /\.svelte$/ }, ({ path }) => {
            const source = readFileSync(path, 'utf8');
            const made = compile(source, { filename: path, generate: 'client', runes: true, css: 'external' });
            const warnings = made.warnings.map((warning) => ({ text: `${warning.code}: ${warning.message}` }));
            return { contents: made.js.code, loader: 'js', warnings };
        });
        plugin.onLoad({ filter: /\.svelte\.ts$/ }, async ({ path }) => {
            const plain = await transform(readFileSync(path, 'utf8'), { loader: 'ts', target: 'es2022' });
            return { contents: compileModule(plain.code, { filename: path, generate: 'client' }).js.code, loader: 'js' };
        });
    },
};

const made = await build({
    absWorkingDir: root,
    entryPoints: { app: 'src/main.ts', login: 'src/login.ts', style: 'src/style.css' },
    bundle: true,
    write: false,
    outdir: 'out',
    minify: true,
    format: 'iife',
    target: 'es2022',
    charset: 'utf8',
    legalComments: 'none',
    conditions: ['svelte', 'browser', 'production'],
    plugins: [svelte],
});
const files = made.outputFiles.map((file) => [file.path.split('/').at(-1), file.contents]);
for (const name of ['index.html', 'login.html', 'icon.svg']) {
    files.push([name, readFileSync(join(root, 'src', name))]);
}
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
let bytes = 0;
for (const [name, contents] of files) {
    const compressed = gzipSync(contents, { level: 9 });
    // The tenth byte tells the system that it was compressed on.
    compressed[9] = 255;
    writeFileSync(join(out, `${name}.gz`), compressed);
    bytes += compressed.length;
}
if (bytes > 200 << 10) throw new Error(`the page has ${bytes} bytes, more than 200 KiB`);
console.log(`${files.length} files, ${bytes} bytes`);
