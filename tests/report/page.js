// A page of `ncclscope report` in a browser, as its readers see it.
//
//   node page.js [--size WIDTHxHEIGHT] [--dark] PAGE STEP...
//
// opens the page from its file and runs the steps in order:
//
//   --may-be-refused    refusals of the page's own policy are no errors from here on
//   --open-tables       open all tables that stand for pictures
//   --values NAME       print a table: a JSON list of its rows, each an object of plain values
//   --choose NAME=VALUE choose a radio button
//   --select NUMBER     choose an operation among the slowest
//   --tab               press the tab key until it comes around; print what has the focus, in order
//   --type KEY          press a key
//   --ask SCRIPT        print the value of an expression in the page, as JSON
//   --keep IDS          show only these parts of the page, as in verdict,links
//   --picture FILE      write a PNG of the whole page
//   --print FILE        write a PDF of it, as it would be printed
//
// Exit status: 0 done, 1 the page reports an error, asked for something or a step failed, 2 wrong
// usage, 3 no browser or no playwright-core, with the reason on standard error.
'use strict';

const fs = require('fs');
const path = require('path');
const {pathToFileURL} = require('url');
const {Usage, FLAGS, browser, playwright, fail, say} = require('../perfetto/browser.js');

const DRAWN_MS = 120000;

/* global document */

function openTables() {
  document.querySelectorAll('details.alternative').forEach((details) => (details.open = true));
}

function values(name) {
  const table = document.querySelector(`table[data-table="${name}"]`);
  if (!table) throw new Error(`no table ${name}`);
  const button = table.closest('.scroll').parentElement.querySelector(':scope > button');
  if (button) button.click();
  const plain = (text) => (text === '' ? null : Number.isNaN(Number(text)) ? text : Number(text));
  const cells = (row) => [...row.children].map((cell) => [cell.dataset.column, plain(cell.dataset.value)]);
  return [...table.tBodies[0].rows].map((row) => Object.fromEntries(cells(row)));
}

// What has the focus, in words.
function focused() {
  const it = document.activeElement;
  if (!it || it === document.body) return '';
  return `${it.tagName.toLowerCase()} ${(it.getAttribute('aria-label') || it.name || it.textContent || '').trim().slice(0, 60)}`.trim();
}

function keep(ids) {
  const kept = ids.split(',');
  document.querySelectorAll('nav, footer, main > *, .alternative').forEach((it) => {
    if (!kept.includes(it.id)) it.style.display = 'none';
  });
  document.body.style.paddingBottom = '1.5rem';
}

const print = (value) => say([JSON.stringify(value ?? null)]);
const settle = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

const STEPS = {
  '--values': async (page, name) => print(await page.evaluate(values, name)),
  '--choose': (page, words) => page.click(`input[name="${words.split('=')[0]}"][value="${words.split('=')[1]}"]`),
  '--select': (page, number) => page.selectOption('#slowest-of', number),
  '--type': (page, key) => page.keyboard.press(key),
  '--ask': async (page, script) => print(await page.evaluate(script)),
  '--keep': (page, ids) => page.evaluate(keep, ids),
  '--picture': async (page, file) => {
    await page.mouse.move(0, 0);
    await page.screenshot({path: file, fullPage: true});
  },
  '--print': (page, file) => page.pdf({path: file, preferCSSPageSize: true, printBackground: false}),
};
const BARE = {
  '--open-tables': (page) => page.evaluate(openTables),
  '--tab': async (page) => {
    const seen = [];
    for (let at = 0; at < 500; at++) {
      await page.keyboard.press('Tab');
      const now = await page.evaluate(focused);
      if (!now) break;
      seen.push(now);
    }
    print(seen);
  },
};

function parse(words) {
  const wish = {size: [1200, 900], steps: [], isDark: false, mayBeRefused: false};
  for (let at = 0; at < words.length; at++) {
    const word = words[at];
    if (word === '--dark') wish.isDark = true;
    else if (word === '--may-be-refused') wish.mayBeRefused = true;
    else if (word === '--size') wish.size = words[++at].split('x').map(Number);
    else if (BARE[word]) wish.steps.push({word, run: BARE[word]});
    else if (STEPS[word]) wish.steps.push({word, run: STEPS[word], value: words[++at]});
    else if (!word.startsWith('--')) wish.page = word;
    else throw new Usage(`${word} is not known`);
  }
  if (!wish.page || !fs.existsSync(wish.page)) throw new Usage(`${wish.page}: no such page`);
  return wish;
}

async function main(words) {
  const wish = parse(words);
  const executablePath = browser();
  const {chromium} = playwright();
  const started = await chromium.launch({executablePath, args: FLAGS});
  try {
    const context = await started.newContext({
      viewport: {width: wish.size[0], height: wish.size[1]}, colorScheme: wish.isDark ? 'dark' : 'light'});
    const page = await context.newPage();
    page.setDefaultTimeout(DRAWN_MS);
    const complaints = [];
    const own = pathToFileURL(path.resolve(wish.page)).href;
    page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(`console: ${message.text()}`));
    page.on('pageerror', (error) => complaints.push(`error: ${error.stack || error.message}`));
    page.on('dialog', (dialog) => {
      complaints.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on('request', (request) => request.url().split('#')[0] !== own && complaints.push(`request: ${request.url().slice(0, 200)}`));
    await page.goto(own);
    await page.waitForFunction(() => document.documentElement.dataset.drawn !== undefined);
    await settle(page);
    for (const {word, run, value} of wish.steps) {
      try {
        await run(page, value);
      } catch (error) {
        throw new Error(`${word} ${value ?? ''}: ${error.message}`);
      }
      await settle(page);
    }
    // What is meant to be an element, but was made a text.
    const odd = await page.evaluate(() => document.body.innerText.match(/.*\[object .*/));
    if (odd) complaints.push(`text: ${odd[0].slice(0, 200)}`);
    const isRefusal = (text) => wish.mayBeRefused && text.includes('Content Security Policy');
    if (complaints.some((text) => !isRefusal(text))) throw new Error(`the page complains: ${complaints.join(' | ')}`);
  } finally {
    await started.close();
  }
}

main(process.argv.slice(2)).catch(fail);
