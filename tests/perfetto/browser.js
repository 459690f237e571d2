// Perfetto's user interface in a browser, as users see it.
//
//   node browser.js [--size WIDTHxHEIGHT] (--trace FILE | --link URL) STEP...
//
// opens a trace, or a link to a copy of the interface with a trace in it, and runs the steps in
// order:
//
//   --expand PATTERN    open the groups and tracks whose path matches; a path is the names from
//                       the top, joined by " > "
//   --collapse PATTERN  close them
//   --pin PATTERN       pin them
//   --hide PATTERN      hide them
//   --by-rank           order the processes by rank, as the interface itself does from v57 on
//   --note PATTERN=TEXT write a note on the first of them, at the right edge of the picture
//   --zoom BEGIN,END    show this time range: nanoseconds from the trace's start
//   --zoom-to SQL       show the time range in the first row, in the trace's own time
//   --select SQL        select the slice whose id is in the first row, with its arguments
//   --command JSON      run a command of the interface: {"id": "...", "args": [...]}
//   --list              print the tree of tracks that are drawn, one line per track
//   --pinned            print the pinned tracks
//   --view              print the begin and end of the view, in the trace's own time
//   --fit               make the window as tall as its tracks
//   --picture FILE      write a PNG
//
// The browser can reach only the loopback interface. Exit status: 0 done, 1 the interface or a
// step reports an error, 2 wrong usage, 3 no browser or no playwright-core, with the reason on
// standard error. NCCLSCOPE_CHROMIUM names a browser to use instead of the one on the PATH.
'use strict';

const {spawnSync} = require('child_process');
const fs = require('fs');
const http = require('http');
const os = require('os');
const path = require('path');
const {cache, pages} = require('./viewer.js');

const TALLEST = 4000;
const LOADED_MS = 120000;

class Missing extends Error {}
class Usage extends Error {}

// ---- the command line ----

function browser() {
  const named = process.env.NCCLSCOPE_CHROMIUM;
  const names = named ? [named] : ['chromium', 'chromium-browser', 'google-chrome'];
  const folders = (process.env.PATH || '').split(':');
  for (const name of names) {
    const places = name.includes('/') ? [name] : folders.map((folder) => path.join(folder, name));
    const found = places.find((place) => fs.existsSync(place));
    if (found) return found;
  }
  throw new Missing('no Chromium; on Debian: apt-get install chromium fonts-liberation');
}

// The library that drives the browser: installed once into the cache, from its lock file.
function playwright() {
  const manifest = path.join(__dirname, 'browser');
  const {dependencies} = JSON.parse(fs.readFileSync(path.join(manifest, 'package.json')));
  const folder = path.join(cache(), `playwright-core-${dependencies['playwright-core']}`);
  if (!fs.existsSync(folder)) {
    fs.mkdirSync(cache(), {recursive: true});
    const scratch = fs.mkdtempSync(path.join(cache(), 'browser-'));
    try {
      for (const name of ['package.json', 'package-lock.json']) {
        fs.copyFileSync(path.join(manifest, name), path.join(scratch, name));
      }
      const {error, status, stderr} = spawnSync(
        'npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--prefix', scratch], {encoding: 'utf8'});
      if (error || status !== 0) {
        throw new Missing(`npm failed to install playwright-core: ${error ? error.message : stderr.trim()}`);
      }
      fs.renameSync(scratch, folder);
    } catch (error) {
      // Another process may have been faster.
      if (!fs.existsSync(folder)) throw error;
    } finally {
      fs.rmSync(scratch, {recursive: true, force: true});
    }
  }
  return require(path.join(folder, 'node_modules', 'playwright-core'));
}

const TYPES = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.wasm': 'application/wasm'};

// Serves the interface, and a trace as /trace, on the loopback interface.
function serve(trace) {
  const root = pages();
  const server = http.createServer((request, response) => {
    const name = path.normalize(decodeURIComponent(new URL(request.url, 'http://localhost').pathname));
    const file = name === '/trace' ? trace : path.join(root, name === '/' ? 'index.html' : name);
    if (!fs.existsSync(file) || !fs.statSync(file).isFile()) return response.writeHead(404).end();
    response.writeHead(200, {'Content-Type': TYPES[path.extname(file)] || 'application/octet-stream'});
    return fs.createReadStream(file).pipe(response);
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

// ---- functions that run inside the page, which exposes its internals as `window.app` ----

/* global window, document */

// Returns the page's error, or nothing once it shows a trace and is idle.
async function settled(limit) {
  const end = Date.now() + limit;
  for (let quiet = 0; quiet < 10; ) {
    await new Promise((resolve) => setTimeout(resolve, 25));
    const dialog = document.querySelector('.pf-modal-dialog');
    if (dialog) return dialog.innerText.replace(/\s*\n\s*/g, ' | ').trim();
    if (Date.now() > end) return 'it is still busy';
    const app = window.app;
    const rests = app && app.trace && !app.isLoadingTrace && app.trace.engine.numRequestsPending === 0
      && !app.raf.hasPendingRedraws && !document.getAnimations().some((one) => one.playState === 'running');
    quiet = rests ? quiet + 1 : 0;
  }
  return '';
}

// Tracks by their path; also available to the steps in the page.
function tracksLike(pattern) {
  const matches = new RegExp(pattern);
  return window.app.trace.workspace.flatTracks.filter((node) => matches.test(node.fullPath.join(' > ')));
}

function onTracks({verb, pattern}) {
  const found = window.tracksLike(pattern);
  for (const node of found) {
    node[verb]();
    for (let above = node.parent; verb === 'expand' && above && above.expand; above = above.parent) above.expand();
  }
  window.app.raf.scheduleFullRedraw();
  return found.length;
}

function byRank() {
  const {tracks} = window.app.trace.workspace;
  const rank = (node) => Number(/^rank (\d+)/.exec(node.name)[1]);
  const processes = tracks.children.filter((node) => /^rank \d/.test(node.name));
  processes.sort((one, other) => rank(one) - rank(other)).forEach((node) => tracks.addChildLast(node));
  window.app.raf.scheduleFullRedraw();
  return processes.length;
}

// The page's rows are the tracks outside closed groups, in order, after the pinned ones.
function note({pattern, text}) {
  const drawn = [];
  const walk = (node) => node.children.forEach((child) => {
    if (!child.headless) drawn.push(child);
    if (child.headless || child.expanded) walk(child);
  });
  walk(window.app.trace.workspace.tracks);
  const titles = [...document.querySelectorAll('.pf-track__title')].slice(-drawn.length);
  const place = drawn.indexOf(window.tracksLike(pattern).find((node) => drawn.includes(node)));
  if (place < 0 || !titles[place].textContent.replaceAll('\u00a0', ' ').startsWith(drawn[place].name)) return 0;
  const {top, bottom} = titles[place].closest('.pf-track__header').getBoundingClientRect();
  const label = document.createElement('div');
  label.textContent = text;
  label.style.cssText = `position: fixed; right: 24px; top: ${top + 1}px; height: ${Math.min(bottom - top, 24) - 2}px;
    padding: 0 10px; display: flex; align-items: center; font: 13px Roboto, sans-serif; color: #1f2937; background: #fef3c7;
    border-left: 3px solid #d97706; z-index: 1000`;
  document.body.append(label);
  return 1;
}

// Lanes with one name are one line; so are tracks that are drawn as one.
function tree() {
  const lines = [];
  const walk = (node, depth) => {
    for (const child of node.children) {
      lines.push('  '.repeat(depth) + child.name);
      walk(child, depth + 1);
    }
  };
  walk(window.app.trace.workspace.tracks, 0);
  return lines;
}

function pinned() {
  return window.app.trace.workspace.pinnedTracks.map((node) => node.name);
}

function view() {
  const {start, end} = window.app.trace.timeline.visibleWindow.toTimeSpan();
  return `${start} ${end}`;
}

async function firstRow(sql) {
  const answer = await window.app.trace.engine.query(sql);
  const row = answer.iter({});
  return row.valid() ? answer.columns().map((column) => String(row.get(column))) : undefined;
}

function zoom({begin, end, isAbsolute}) {
  const {start} = window.app.trace.traceInfo;
  const time = (text) => (isAbsolute ? BigInt(text) : start + BigInt(text));
  window.app.trace.timeline.setViewportTime(time(begin), time(end));
}

function select(id) {
  const how = {scrollToSelection: true, switchToCurrentSelectionTab: true};
  window.app.trace.selection.selectSqlEvent('slice', Number(id), how);
}

function command({id, args}) {
  return window.app.commands.runCommand(id, ...(args || [])).then(() => undefined);
}

// How much taller the tracks are than their part of the window; negative if there is room left.
function missingHeight() {
  const part = document.querySelector('.pf-viewer-page__scrolling-track-tree');
  return Math.ceil(part.firstElementChild.getBoundingClientRect().height) - part.clientHeight;
}

// ---- the steps ----

const STEPS = {
  '--expand': (page, pattern) => page.evaluate(onTracks, {verb: 'expand', pattern}),
  '--collapse': (page, pattern) => page.evaluate(onTracks, {verb: 'collapse', pattern}),
  '--pin': (page, pattern) => page.evaluate(onTracks, {verb: 'pin', pattern}),
  '--hide': (page, pattern) => page.evaluate(onTracks, {verb: 'remove', pattern}),
  '--note': (page, words) => {
    const end = words.indexOf('=');
    return page.evaluate(note, {pattern: words.slice(0, end), text: words.slice(end + 1)});
  },
  '--zoom': (page, stretch) => {
    const [begin, end] = stretch.split(',');
    return page.evaluate(zoom, {begin, end, isAbsolute: false});
  },
  '--zoom-to': async (page, sql) => {
    const [begin, end] = await row(page, sql);
    await page.evaluate(zoom, {begin, end, isAbsolute: true});
  },
  '--select': async (page, sql) => page.evaluate(select, (await row(page, sql))[0]),
  '--command': (page, json) => page.evaluate(command, JSON.parse(json)),
  '--picture': async (page, file) => {
    await page.mouse.move(0, 0);
    await page.screenshot({path: file});
  },
};
const BARE = {
  '--by-rank': (page) => page.evaluate(byRank),
  '--list': async (page) => say(await page.evaluate(tree)),
  '--pinned': async (page) => say(await page.evaluate(pinned)),
  '--view': async (page) => say([await page.evaluate(view)]),
  '--fit': async (page) => {
    // The height of tracks that were out of sight is only known now.
    for (let tries = 0; tries < 8; tries++) {
      const {width, height} = page.viewportSize();
      const fitting = Math.min(height + (await page.evaluate(missingHeight)), TALLEST);
      if (fitting === height) break;
      await page.setViewportSize({width, height: fitting});
      await page.evaluate(settled, LOADED_MS);
    }
  },
};

async function row(page, sql) {
  const found = await page.evaluate(firstRow, sql);
  if (!found) throw new Error(`no row answers ${sql}`);
  return found;
}

function say(lines) {
  process.stdout.write(lines.map((line) => `${line}\n`).join(''));
}

function parse(words) {
  const wish = {size: [1600, 900], steps: []};
  for (let at = 0; at < words.length; at++) {
    const word = words[at];
    if (BARE[word]) {
      wish.steps.push({word, run: BARE[word]});
      continue;
    }
    const value = words[++at];
    if (value === undefined) throw new Usage(`${word} is not known, or needs a value`);
    if (STEPS[word]) wish.steps.push({word, value, run: STEPS[word]});
    else if (word === '--trace') wish.trace = value;
    else if (word === '--link') wish.link = value;
    else if (word === '--size') wish.size = value.split('x').map(Number);
    else throw new Usage(`${word} is not known`);
  }
  if (Boolean(wish.trace) === Boolean(wish.link)) throw new Usage('one of --trace and --link is needed');
  return wish;
}

async function main(words) {
  const wish = parse(words);
  if (wish.trace && !fs.existsSync(wish.trace)) throw new Usage(`${wish.trace}: no such file`);
  const executablePath = browser();
  const {chromium} = playwright();
  const server = wish.link ? undefined : await serve(wish.trace);
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'ncclscope-browser-'));
  let context;
  try {
    context = await chromium.launchPersistentContext(profile, {
      executablePath,
      viewport: {width: wish.size[0], height: wish.size[1]},
      args: FLAGS,
    });
    const page = context.pages()[0] || (await context.newPage());
    const complaints = [];
    page.on('dialog', (dialog) => {
      complaints.push(dialog.message());
      dialog.dismiss();
    });
    await page.addInitScript(() => window.localStorage.setItem('dismissedPanningHint', 'true'));
    await page.addInitScript({content: `window.tracksLike = ${tracksLike}`});
    page.setDefaultTimeout(LOADED_MS);
    const address = server && `http://127.0.0.1:${server.address().port}`;
    await page.goto(wish.link || `${address}/?testing=1#!/?hideSidebar=true&url=${encodeURIComponent(`${address}/trace`)}`);
    const rest = async () => {
      const wrong = complaints[0] || (await page.evaluate(settled, LOADED_MS));
      if (wrong) throw new Error(`the user interface says: ${wrong}`);
    };
    await rest();
    for (const {word, value, run} of wish.steps) {
      if ((await run(page, value)) === 0) throw new Error(`${word}: no track matches ${value}`);
      await rest();
    }
  } finally {
    if (context) await context.close();
    if (server) {
      server.close();
      server.closeAllConnections();
    }
    fs.rmSync(profile, {recursive: true, force: true, maxRetries: 5});
  }
}

// Ends the process with the status that the reason has.
function fail(error) {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = error instanceof Missing ? 3 : error instanceof Usage ? 2 : 1;
}

// How the browser is started: it can reach only the loopback interface.
const FLAGS = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--no-proxy-server',
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'];

// Also for tests/report/page.js, which looks at another page.
module.exports = {Usage, FLAGS, browser, playwright, fail, say};
if (require.main === module) main(process.argv.slice(2)).catch(fail);
