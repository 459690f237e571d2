// Draws the page from the data in it. Texts of the data become text nodes and labels on canvases,
// never markup.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const main = document.getElementById('main');

  // ---- words and figures, as the commands print them ----

  const digits = (value) => (value < 10 ? 2 : value < 100 ? 1 : 0);
  const scaled = (value, unit) => `${value.toFixed(digits(Math.abs(value)))} ${unit}`;
  function duration(ns) {
    const size = Math.abs(ns);
    if (size < 1e3) return `${Math.round(ns)} ns`;
    if (size < 1e6) return scaled(ns / 1e3, 'µs');
    if (size < 1e9) return scaled(ns / 1e6, 'ms');
    return scaled(ns / 1e9, 's');
  }
  function bytes(number) {
    let at = 0;
    let value = number;
    while (value >= 1024 && at < 5) {
      value /= 1024;
      at += 1;
    }
    const text = Number.isInteger(value) ? String(value) : value.toFixed(1);
    return `${text} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][at]}`;
  }
  function rate(perSecond) {
    if (perSecond < 1e3) return `${Math.round(perSecond)} B/s`;
    if (perSecond < 1e6) return scaled(perSecond / 1e3, 'kB/s');
    if (perSecond < 1e9) return scaled(perSecond / 1e6, 'MB/s');
    return scaled(perSecond / 1e9, 'GB/s');
  }
  const percent = (part) => `${Math.round(100 * part)} %`;
  const count = (number, one, many = `${one}s`) => `${number.toLocaleString('en')} ${number === 1 ? one : many}`;
  // `10.0 ms` on an axis is `10 ms`.
  const round = (text) => text.replace(/\.0+ /, ' ');
  // What belongs together stays in one line.
  const bound = (text) => text.replace(/(\d) (%|ns|µs|ms|s|B|KiB|MiB|GiB)(?![a-z])/g, '$1\u00a0$2');
  const short = (text, length = 40) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
  const SHOWN = {ns: duration, bytes, rate, percent, number: (it) => it.toLocaleString('en'), counter: (it) => it.toLocaleString('en')};
  const shown = (value, kind) => {
    if (value === null || value === undefined) return '–';
    return typeof value === 'number' && SHOWN[kind] ? SHOWN[kind](value) : String(value);
  };

  // ---- elements ----

  function el(name, facts = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(facts)) {
      if (key === 'class') made.className = value;
      else if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
      else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? '' : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ''));
    return made;
  }

  // Names between backticks, as kernels have them.
  const named = (text) => text.split('`').map((part, place) => (place % 2 === 1 ? el('span', {class: 'name'}, part) : part));

  const ROWS = 200;

  // A table; columns are {name, title, kind}, rows are lists of plain values. Each cell has its plain value, too.
  function table(label, columns, rows, {head = 0, markup = {}} = {}) {
    const says = (at) => rows.some((row) => row[at] !== null && row[at] !== undefined && row[at] !== ''
      && !(columns[at].kind === 'counter' && row[at] === 0));
    const kept = columns.map((_, at) => at).filter(says);
    const isNumber = (at) => columns[at].kind !== 'text' && columns[at].kind !== 'code';
    const body = el('tbody');
    const line = (row) => el('tr', {}, kept.map((at) => {
      const value = row[at];
      const isLong = columns[at].kind === 'code' || String(value ?? '').length > 24;
      const facts = {class: isNumber(at) ? 'n' : isLong ? 'long' : undefined, 'data-column': columns[at].name, 'data-value': value ?? ''};
      if (at === head) facts.scope = 'row';
      const text = shown(value, columns[at].kind);
      return el(at === head ? 'th' : 'td', facts, columns[at].kind === 'code' ? el('code', {}, text) : text);
    }));
    const add = (until) => body.append(...rows.slice(body.childElementCount, until).map(line));
    add(ROWS);
    const titles = kept.map((at) => el('th', {scope: 'col', class: isNumber(at) ? 'n' : undefined}, columns[at].title));
    const scroll = el('div', {class: 'scroll', role: 'region', tabindex: 0, 'aria-label': label},
      el('table', {'data-table': markup.name}, el('thead', {}, el('tr', {}, titles)), body));
    if (rows.length <= ROWS) return scroll;
    const more = el('button', {type: 'button', onclick: () => {
      add(rows.length);
      more.remove();
    }}, `Show all ${rows.length.toLocaleString('en')} rows`);
    return el('div', {}, scroll, more);
  }

  // The table is made when it is first opened.
  function alternative(label, make) {
    const details = el('details', {class: 'alternative'}, el('summary', {}, label));
    details.addEventListener('toggle', () => {
      if (details.open && details.childElementCount === 1) details.append(make());
    });
    return details;
  }

  function part(id, title, says) {
    const section = el('section', {id, 'aria-labelledby': `${id}-title`}, el('h2', {id: `${id}-title`}, title));
    if (says) section.append(el('p', {class: 'says'}, says));
    main.append(section);
    document.getElementById('parts').append(el('li', {}, el('a', {href: `#${id}`}, title)));
    return section;
  }

  function choice(name, label, options, act) {
    const inputs = options.map(([value, text], at) => el('label', {},
      el('input', {type: 'radio', name, value, checked: at === 0, onchange: () => act(value)}), text));
    return el('div', {class: 'controls'}, el('fieldset', {}, el('legend', {}, label), inputs));
  }

  // ---- pictures ----

  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif';
  const LOOKS = {
    light: {
      paper: '#ffffff', ink: '#1b2430', quiet: '#5a6675', line: '#dde2e8', shade: '#f6f7f9', mark: '#ffffff', edge: '#1b2430',
      scale: ['#e8eff7', '#bcd5ea', '#6fa8d6', '#2f74b5', '#08366f'],
      series: ['#0072b2', '#d55e00', '#009e73', '#a3559b', '#8a6d00', '#4aa3df', '#555f6b'],
      shares: {alone: '#b4bdc8', hidden: '#74b3de', exposed: '#0a5ea8', waits: '#e39a2d', idle: '#eef1f4'},
    },
    dark: {
      paper: '#12171e', ink: '#e4e9f0', quiet: '#9aa7b6', line: '#2e3845', shade: '#1a212b', mark: '#12171e', edge: '#e4e9f0',
      scale: ['#1c2a3a', '#22486e', '#3279b8', '#72b4ea', '#d9eeff'],
      series: ['#56b4e9', '#f0894a', '#3ec9a0', '#d99ad1', '#d8bf4d', '#9ad0f5', '#aab4c0'],
      shares: {alone: '#5d6876', hidden: '#7cc0ee', exposed: '#2f7fd0', waits: '#e8ab52', idle: '#222b37'},
    },
  };
  const SYMBOLS = ['circle', 'rect', 'triangle', 'diamond', 'roundRect', 'pin', 'arrow'];
  // Told apart without colours, too.
  const STRIPES = {color: 'rgba(255,255,255,.35)', dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -Math.PI / 4, symbolSize: 1};
  const DOTS = {color: 'rgba(0,0,0,.38)', symbol: 'circle', dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [6, 0], symbolSize: .5};
  const PAPER_WIDTH = 680;

  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const print = window.matchMedia('print');
  const pictures = [];
  let isPrinting = false;
  const look = () => (!isPrinting && dark.matches ? LOOKS.dark : LOOKS.light);

  // A picture in words, for those who do not see it, and its caption.
  function picture(section, {height, words, caption, option}) {
    const box = el('div', {class: 'chart', role: 'img', 'aria-label': words, style: `height: ${height}px`});
    section.append(el('figure', {}, box, caption ? el('figcaption', {}, caption) : null));
    const made = {box, option, chart: echarts.init(box, null, {renderer: 'canvas', devicePixelRatio: Math.max(2, window.devicePixelRatio)})};
    pictures.push(made);
    made.draw = () => {
      const base = {
        animation: false, backgroundColor: 'transparent', textStyle: {fontFamily: FONT, fontSize: 12, color: look().ink},
        tooltip: {confine: true, backgroundColor: look().paper, borderColor: look().line, borderWidth: 1, padding: [8, 11],
          textStyle: {color: look().ink, fontSize: 13}, extraCssText: 'box-shadow: 0 2px 10px rgba(0,0,0,.14)'},
      };
      const {tooltip, ...rest} = made.option(look());
      made.chart.setOption({...base, ...rest, tooltip: {...base.tooltip, ...tooltip}}, {notMerge: true});
    };
    made.draw();
    return made;
  }

  const axis = (look, name, facts) => ({
    name, nameTextStyle: {color: look.quiet, fontSize: 12}, nameLocation: 'middle',
    axisLine: {lineStyle: {color: look.line}}, axisTick: {lineStyle: {color: look.line}},
    splitLine: {lineStyle: {color: look.line}}, ...facts,
    axisLabel: {color: look.quiet, fontSize: 11, ...facts.axisLabel},
  });

  function tip(title, lines) {
    return el('div', {class: 'tip'}, el('div', {}, el('b', {}, title)), lines.map((line) => el('div', {}, line)));
  }

  // A map of cells {column, row, value, lines}; what is not in it is blank.
  function map({rows, columns, columnTitle, cells, marks, format, scaleTitle, isSquare}) {
    const side = Math.max(4.5, Math.min(isSquare ? 44 : 32, 560 / rows.length));
    const areRanks = isSquare && columns.every((it) => /^ranks? /.test(it));
    const widest = Math.min(170, 18 + 6.4 * Math.max(...rows.map((it) => it.length)));
    const values = cells.map((cell) => cell.value).filter((value) => value !== null).sort((one, other) => one - other);
    const [most, nearly] = [values[values.length - 1] || 1, values[Math.floor(values.length * .98)] || 1];
    // A few that are far beyond all others do not take the colours from these.
    const top = most > 4 * nearly ? nearly : most;
    const height = rows.length * side + 108;
        const option = (look) => ({
      grid: {left: widest, right: isSquare ? undefined : 18, width: isSquare ? columns.length * side : undefined, top: 6, bottom: 102},
      xAxis: axis(look, areRanks ? 'to rank' : columnTitle, {type: 'category', data: columns, nameGap: 28, splitLine: {show: false}, axisTick: {show: false},
        splitArea: {show: true, areaStyle: {color: [look.shade]}},
        axisLabel: {hideOverlap: true, formatter: (text) => short(areRanks ? text.replace(/^ranks? /, '') : text, 22)}}),
      yAxis: axis(look, '', {type: 'category', data: rows, inverse: true, splitLine: {show: false}, axisTick: {show: false},
        axisLabel: {interval: Math.max(0, Math.ceil(15 / side) - 1), width: widest - 10, overflow: 'truncate'}}),
      visualMap: {type: 'continuous', seriesIndex: 0, dimension: 2, min: 0, max: top, calculable: false, orient: 'horizontal',
        left: widest - 4, bottom: 6, itemWidth: 11, itemHeight: 170, hoverLink: false, inRange: {color: look.scale},
        text: [`${format(top)}${top < most ? ' and more' : ''}`, `${scaleTitle}   0`], textStyle: {color: look.quiet, fontSize: 12}, textGap: 10},
      tooltip: {trigger: 'item', formatter: ({data: it}) => (it.cell ? tip(it.cell.title, it.cell.lines) : '')},
      series: [
        {type: 'heatmap', data: cells.filter((cell) => cell.value !== null).map((cell) => ({value: [cell.column, cell.row, cell.value], cell})),
          itemStyle: {borderColor: look.paper, borderWidth: side > 14 ? 1.5 : .5}, emphasis: {itemStyle: {borderColor: look.ink, borderWidth: 1.5}}, progressive: 0},
        {type: 'scatter', data: marks || [], symbol: 'circle', symbolSize: Math.max(4, Math.min(8, side / 3)), silent: true, z: 5,
          itemStyle: {color: look.mark, borderColor: look.edge, borderWidth: 1.2}},
      ],
    });
    return {height, option};
  }

  // ---- the verdict ----

  const {diagnosis} = data;
  const at = (columns, name) => columns.findIndex((column) => column.name === name);
  const setting = (name) => {
    const {columns, rows} = data.environment;
    return rows.filter((row) => row[at(columns, 'name')] === name).map((row) => row[at(columns, 'value')])[0];
  };

  function head() {
    const hosts = new Set((diagnosis ? diagnosis.ranks : []).map((it) => it.host).filter(Boolean));
    const title = data.named.length > 3 ? `${data.named[0]} and ${data.named.length - 1} more` : data.named.join(', ');
    document.getElementById('title').textContent = title;
    document.title = `${title} – ncclscope report`;
    const facts = [count(data.processes, 'process', 'processes'), hosts.size ? count(hosts.size, 'host') : null,
      setting('NCCL') ? `NCCL ${setting('NCCL')}` : null, `made by ncclscope ${data.ncclscope}`];
    document.getElementById('facts').textContent = facts.filter(Boolean).join(' · ');
  }

  const KINDS = {healthy: 'Verdict: healthy', causes: 'Verdict: it could be faster', mismatch: 'Verdict: the ranks do not agree', hang: 'Verdict: it hangs', 'shared-gpu': 'Verdict: ranks share a GPU', 'cannot-tell': 'Verdict: cannot tell'};

  function verdict() {
    const box = el('div', {class: `verdict ${diagnosis ? diagnosis.verdict : ''}`, id: 'verdict', tabindex: -1});
    main.append(box);
    if (!diagnosis) {
      box.append(el('p', {class: 'kind'}, 'No verdict'), el('p', {class: 'answer'}, `${data.no_diagnosis}.`));
      return;
    }
    const {steps, causes, mismatches, shared_gpus: shared, what_if: whatIf, look_at_all: all} = diagnosis;
    const standing = diagnosis.hangs.filter((it) => !it.over);
    // In a large job, thousands of operations wait for the one that hangs.
    const hangs = [...standing.filter((it) => !it.explained).slice(0, 16), ...standing.filter((it) => it.explained).slice(0, 4)];
    if (hangs.length < standing.length) {
      const more = standing.length - hangs.length;
      hangs.push({text: `${more} more operation${more === 1 ? '' : 's'}; the JSON of diagnose has all.`, details: []});
    }
    // They may be why it hangs.
    const differing = mismatches.length + standing.length > 0 ? diagnosis.differing.map((it) => ({text: `Settings differ: ${it.text}`, details: []})) : [];
    const troubles = diagnosis.verdict === 'shared-gpu' ? [...shared, ...hangs, ...differing] : [...mismatches, ...hangs, ...shared, ...differing];
    box.append(el('p', {class: 'kind'}, KINDS[diagnosis.verdict]), el('p', {class: 'answer'}, named(bound(`${diagnosis.text}.`))));
    const isCause = diagnosis.verdict === 'causes';
    if (troubles.length > 0) {
      // Unless the answer is a cause, the first one is the answer itself.
      const lines = troubles.flatMap((it, place) => (place === 0 && !isCause ? it.details : [it.text, ...it.details]));
      if (lines.length > 0) box.append(el('ul', {}, lines.map((line) => el('li', {}, line))));
    }
    if (steps.count > 0) {
      const doubt = (it) => `${duration(it.step_ns)} ± ${duration(it.doubt_ns)}`;
      const figures = [['a step takes, in the middle', duration(steps.median_ns)], ['on average', duration(steps.mean_ns)],
        ...whatIf.slice(0, 3).map((it) => [it.without, doubt(it)])];
      box.append(el('dl', {class: 'figures'}, figures.map(([what, it]) => el('div', {}, el('dt', {}, what), el('dd', {}, it)))));
      const inferred = steps.times > 1 ? (it) => `inferred, each with \`${it}\` ${steps.times} times` : (it) => `inferred, from one \`${it}\` to the next`;
      const how = steps.from ? inferred(short(steps.from, 60)) : 'ranges that the program marked';
      box.append(el('p', {class: 'quiet'}, named(`Steps ${steps.first} to ${steps.first + steps.count - 1} of ${steps.of}; ${how}.`)));
    }
    if (causes.length > 0) {
      const line = (cause, at) => el('li', {}, at === 0 && isCause ? null
        : named(bound(`${cause.text}: ${duration(cause.cost_ns)} per step (${percent(cause.share)}). `)),
      cause.differing.map((it) => `Settings differ there: ${it}. `), `Look at step ${cause.look_at.step}: `,
      el('br'), el('code', {}, cause.look_at.command), at === 0 && all ? [el('br'), 'On all ranks:', el('br'), el('code', {}, all)] : null);
      box.append(el('ol', {}, causes.map(line)));
    }
  }

  // ---- who came late ----

  function lateness() {
    const it = data.lateness;
    const byStretch = data.is_of_summaries;
    const how = byStretch ? 'collectives, on average over a stretch of them' : 'operations that ranks meet in';
    const section = part('lateness', 'Who came late',
      `How long after the first rank each rank came to the ${how}. Told by durations on each GPU, so no clock is compared with another.`);
    if (!it || it.cells.length === 0) {
      const why = it && it.unknown > 0 ? `: of ${count(it.unknown, 'operation')} not all ranks' files are here, or records are lost` : '';
      section.append(el('p', {}, `Not known from these files${why}.`));
      return;
    }
    const last = it.edges.length - 2;
    const name = (column) => {
      const [from, to] = [it.edges[column], it.edges[column + 1]];
      if (!it.is_by_step) return duration(from);
      return to - from === 1 ? String(from) : `${from}–${to - 1}`;
    };
    const columns = it.edges.slice(0, last + 1).map((_, column) => name(column));
    const cells = it.cells.map(([row, column, rank, mean, most, operations, lasts]) => ({
      row, column, value: mean, isLast: 2 * lasts >= operations && lasts > 0,
      title: `${it.ranks[rank].rank}, ${it.is_by_step ? `step ${columns[column]}` : `from ${columns[column]} on`}`,
      lines: byStretch ? [`${duration(mean)} after the first rank, on average over ${count(operations, 'collective')}`]
        : [`${duration(mean)} after the first rank on average, ${duration(most)} at most`,
          `last in ${lasts} of ${count(operations, 'operation')}`],
    }));
    const ring = byStretch ? 'A ring marks who came last on average, so that others waited. '
      : 'A ring marks who came last to at least half of the operations of a cell, so that others waited. ';
    const worst = it.ranks.filter((rank) => rank.mean_ns !== null).sort((one, other) => other.mean_ns - one.mean_ns)[0];
    const several = it.each > 1 ? ` Each row stands for ${it.each} ranks and shows the one of them that came latest.` : '';
    const warm = it.is_by_step && it.edges[0] > 0 ? ' The first steps are left out as warm-up.' : '';
    const steps = it.is_by_step && it.edges[1] - it.edges[0] > 1 ? ` Each column stands for ${it.edges[1] - it.edges[0]} steps.` : '';
    const unknown = it.unknown > 0 ? ` ${count(it.unknown, 'operation')} left out: not all of their ranks are in these files, or records are lost.` : '';
    picture(section, {
      ...map({rows: it.labels, columns, columnTitle: it.is_by_step ? 'step' : 'time since the first operation', cells,
        marks: cells.filter((cell) => it.each === 1 && cell.isLast).map((cell) => [cell.column, cell.row]), format: duration, scaleTitle: 'late by, on average'}),
      words: `Heat map of lateness by rank and ${it.is_by_step ? 'step' : 'time'}. ${worst.rank} came latest, on average ${duration(worst.mean_ns)} after the first rank. The table below has the same figures by rank.`,
      caption: `${it.each === 1 ? ring : ''}Blank: not known, or no operation.${several}${steps}${warm}${unknown}`,
    });
    section.append(alternative('Lateness by rank, as a table', () => table('Lateness by rank', [
      {name: 'rank', title: 'rank', kind: 'text'}, {name: 'operations', title: 'operations', kind: 'number'},
      {name: 'mean_ns', title: 'late by, on average', kind: 'ns'}, {name: 'most_ns', title: byStretch ? 'at most, over a stretch' : 'at most', kind: 'ns'},
      {name: 'last', title: byStretch ? 'came last to, on average' : 'came last to', kind: 'number'}],
    it.ranks.map((rank) => [rank.rank, rank.operations, rank.mean_ns, rank.most_ns, rank.last]), {markup: {name: 'lateness'}})));
  }

  // ---- what the time of each rank goes into ----

  // Without a diagnosis it is not known what is hidden, nor what are waits.
  const SHARES = data.is_of_summaries
    ? [['alone', 'own kernels and copies'], ['exposed', 'communication alone, with its waits'], ['idle', 'idle']]
    : [['alone', 'own kernels, nothing beside them'], ['hidden', 'communication hidden beside own kernels'],
      ['exposed', 'communication exposed'], ['waits', 'waiting for other ranks'], ['idle', 'idle']];

  function spent() {
    if (diagnosis) return diagnosis.ranks;
    const {columns, rows} = data.gpus || {columns: [], rows: []};
    const name = (cells) => (/^\d+$/.test(cells[0]) ? `rank ${cells[0]}` : cells[0]);
    const several = new Set(rows.map((cells) => cells[0])).size < rows.length;
    return rows.map((cells) => ({
      ...Object.fromEntries(columns.map((column, place) => [column.name, cells[place]])),
      rank: several ? `${name(cells)}, GPU ${cells[1]}` : name(cells), hidden_ns: 0, waits_ns: 0,
    }));
  }

  function shares() {
    const each = diagnosis && diagnosis.steps.count > 0 ? 'a step' : 'the recording';
    const section = part('shares', 'Exposed and hidden communication',
      `What the time of each rank's GPU goes into, in ${each}. ${data.is_of_summaries ? 'It counts between NCCL\'s kernels, from the first one on.'
        : 'Communication beside the application\'s own kernels is hidden; the rest of it is exposed.'}`);
    // By their numbers, whatever the files are called.
    const number = (it) => Number((/^rank (\d+)/.exec(it.rank) || [0, Infinity])[1]);
    const ranks = [...spent()].sort((one, other) => number(one) - number(other) || 0);
    if (ranks.length === 0) {
      section.append(el('p', {}, 'Not known from these files.'));
      return;
    }
    const values = {
      alone: (it) => Math.max(0, it.own_ns - it.hidden_ns), hidden: (it) => it.hidden_ns, exposed: (it) => it.exposed_ns,
      waits: (it) => it.waits_ns, idle: (it) => it.idle_ns,
    };
    const isWide = ranks.length > 32;
    const names = ranks.map((it) => it.rank);
    const widest = Math.min(150, 14 + 6.4 * Math.max(...names.map((it) => it.length)));
    const [bars, scale] = [{type: 'category', data: names, splitLine: {show: false}, axisTick: {show: false}}, {type: 'value'}];
    const most = Math.max(...ranks.map((it) => it.exposed_ns));
    const option = (look) => {
      const value = axis(look, `time in ${each}`, {...scale, nameGap: isWide ? 62 : 30, axisLabel: {formatter: (it) => (it === 0 ? '0' : round(duration(it))), hideOverlap: true}});
      const rank = axis(look, '', {...bars, inverse: !isWide, axisLabel: {hideOverlap: true}});
      return {
        grid: isWide ? {left: 88, right: 18, top: 60, bottom: ranks.length > 128 ? 78 : 34} : {left: widest + 14, right: 30, top: 60, bottom: 46},
        legend: {top: 0, left: 0, itemGap: 18, itemWidth: 16, itemHeight: 12, textStyle: {color: look.ink, fontSize: 12}, inactiveColor: look.line},
        xAxis: isWide ? rank : value, yAxis: isWide ? value : rank,
        dataZoom: ranks.length > 128 ? [{type: 'slider', xAxisIndex: 0, height: 18, bottom: 8, textStyle: {color: look.quiet}, borderColor: look.line, brushSelect: false}] : [],
        tooltip: {trigger: 'axis', axisPointer: {type: 'shadow'}, formatter: (parts) => {
          const it = ranks[parts[0].dataIndex];
          return tip(it.host ? `${it.rank} on ${it.host}` : it.rank, SHARES.map(([name, title]) => `${title}: ${duration(values[name](it))}`));
        }},
        series: SHARES.map(([name, title]) => ({
          name: title, type: 'bar', stack: 'all', barMaxWidth: 20, barCategoryGap: isWide && ranks.length > 64 ? '0%' : '30%', large: false,
          data: ranks.map(values[name]),
          itemStyle: {color: look.shares[name], borderColor: name === 'idle' ? look.line : undefined, borderWidth: name === 'idle' && !isWide ? 1 : 0,
            decal: name === 'exposed' ? STRIPES : name === 'waits' ? DOTS : undefined},
        })),
      };
    };
    picture(section, {
      height: isWide ? 380 : ranks.length * 32 + 112, option,
      words: `Stacked bars of each rank's time in ${each}: ${SHARES.map(([, title]) => title).join('; ')}. The largest exposed communication is ${duration(most)}. The table below has the same figures.`,
      caption: !diagnosis || diagnosis.has_waits ? null : 'Waits are not known from these files; exposed communication contains them.',
    });
    const column = (name, title, kind) => ({name, title, kind});
    const unknown = data.is_of_summaries ? ['hidden_ns', 'waits_ns'] : [];
    const columns = [column('rank', 'rank', 'text'), column('host', 'host', 'text'), column('own_ns', 'own kernels', 'ns'), column('hidden_ns', 'hidden comm.', 'ns'),
      column('exposed_ns', 'exposed comm.', 'ns'), column('waits_ns', 'waits', 'ns'), column('idle_ns', 'idle', 'ns'), column('last', 'comes last', 'percent')]
      .filter(({name}) => !unknown.includes(name));
    section.append(alternative('The same by rank, as a table', () => table('Time by rank', columns,
      ranks.map((it) => columns.map(({name}) => it[name])), {markup: {name: 'shares'}})));
  }

  // ---- bandwidth ----

  const tables = {operations: data.operations, groups: data.groups};

  function points() {
    const found = [];
    for (const [name, {columns, rows}] of Object.entries(tables)) {
      const cell = (row, column) => row[at(columns, column)];
      for (const row of rows) {
        const [size, algorithm, bus] = ['bytes', 'algbw_bytes_per_s', 'busbw_bytes_per_s'].map((column) => cell(row, column));
        if (!(size > 0) || !(algorithm > 0)) continue;
        const what = cell(row, name === 'groups' ? 'operations' : 'operation');
        found.push({series: `${what} on ${cell(row, 'communicator')}`, size, algorithm, bus, number: cell(row, name === 'groups' ? 'number' : 'timed'),
          median: cell(row, 'kernel_median_ns'), most: cell(row, 'kernel_max_ns'), datatype: name === 'groups' ? null : cell(row, 'datatype')});
      }
    }
    return found.sort((one, other) => one.size - other.size);
  }

  function bandwidth() {
    const section = part('bandwidth', 'Bandwidth against message size',
      'For each operation and communicator, as nccl-tests defines it, from all its kernels together. Times of kernels contain waiting for other ranks. Both axes are logarithmic.');
    const all = points();
    if (all.length === 0) {
      section.append(el('p', {}, 'No operation has a size and a kernel with a known time.'));
    } else {
      const names = [...new Set(all.map((it) => it.series))];
      let which = 'algorithm';
      // Whole powers of ten around these values, two at least.
      const around = (low, high) => {
        let [from, to] = [Math.floor(Math.log10(low * .8)), Math.ceil(Math.log10(high * 1.25))];
        if (to - from < 2) [from, to] = Math.log10(low * high) / 2 - from > .5 ? [from, to + 1] : [from - 1, to];
        return [10 ** from, 10 ** to];
      };
      const [left, right] = around(all[0].size, all[all.length - 1].size);
      const option = (look) => {
        const rates = all.map((it) => it[which]).filter((it) => it > 0);
        const [low, high] = around(Math.min(...rates), Math.max(...rates));
        const lines = [];
        if (which === 'algorithm') {
          for (let ns = 1e2; ns <= 1e13; ns *= 10) {
            // From where the line enters the picture to where it leaves it.
            const from = Math.max(left, low * ns / 1e9);
            const to = Math.min(right, high * ns / 1e9);
            if (Math.log10(to / from) > .35) lines.push({ns, from, to});
          }
        }
        const tick = (format) => ({formatter: format, hideOverlap: true});
        return {
          grid: {left: 92, right: 56, top: isPrinting ? 58 + 20 * Math.floor(names.length / 3) : 56, bottom: 52},
          legend: {type: isPrinting ? 'plain' : 'scroll', top: 0, left: 0, right: 0, itemGap: 18, textStyle: {color: look.ink, fontSize: 12}, inactiveColor: look.line,
            pageTextStyle: {color: look.quiet}, pageIconColor: look.quiet, data: names, formatter: (name) => short(name, 48)},
          xAxis: axis(look, 'message size, as nccl-tests counts it', {type: 'log', min: left, max: right, nameGap: 32, axisLabel: tick(decimalBytes), minorTick: {show: false}}),
          yAxis: axis(look, which === 'algorithm' ? 'algorithm bandwidth' : 'bus bandwidth', {type: 'log', min: low, max: high, nameGap: 72, axisLabel: tick((it) => round(rate(it)))}),
          tooltip: {trigger: 'item', formatter: ({data: it}) => (it.point ? tip(`${it.point.series}, ${bytes(it.point.size)}${it.point.datatype ? `, ${it.point.datatype}` : ''}`, [
            `algorithm bandwidth ${rate(it.point.algorithm)}, bus bandwidth ${it.point.bus === null ? 'not defined' : rate(it.point.bus)}`,
            `${count(it.point.number, 'kernel')}; median ${shown(it.point.median, 'ns')}, at most ${shown(it.point.most, 'ns')}`]) : '')},
          series: [
            ...lines.map(({ns, from, to}) => ({type: 'line', silent: true, symbol: 'none', z: 1, tooltip: {show: false},
              data: [[from, from / ns * 1e9], [to, to / ns * 1e9]], lineStyle: {color: look.quiet, width: 1, type: [2, 4], opacity: .75},
              endLabel: {show: true, formatter: round(duration(ns)), color: look.quiet, fontSize: 11, distance: 3,
                align: to >= right * .999 ? 'left' : 'center', verticalAlign: to >= right * .999 ? 'middle' : 'bottom'}})),
            ...names.map((name, place) => ({name, type: all.filter((it) => it.series === name).length > 1 ? 'line' : 'scatter', z: 3,
              color: look.series[place % look.series.length], symbol: SYMBOLS[place % SYMBOLS.length], symbolSize: 10, showAllSymbol: true,
              lineStyle: {width: 1.2}, itemStyle: {color: look.series[place % look.series.length], borderColor: look.paper, borderWidth: 1},
              data: all.filter((it) => it.series === name && it[which] > 0).map((point) => ({value: [point.size, point[which]], point}))})),
          ],
        };
      };
      const words = `Bandwidth against message size for ${count(names.length, 'operation')}, with lines of equal time. The table below has the same figures.`;
      let drawn = null;
      section.append(choice('bandwidth-of', 'show', [['algorithm', 'algorithm bandwidth'], ['bus', 'bus bandwidth']], (value) => {
        which = value;
        drawn.draw();
      }));
      drawn = picture(section, {height: 440, option, words,
        caption: 'Dotted: along a line, messages of all sizes take the time that it says; below it, they take longer. Bus bandwidth has no such lines, since its factor differs by operation.'});
    }
    for (const [name, title] of [['operations', 'All operations, as a table'], ['groups', 'Kernels that carry several operations, as a table']]) {
      const {columns, rows} = tables[name];
      if (rows.length > 0) section.append(alternative(title, () => table(title, columns, rows, {head: 1, markup: {name}})));
    }
  }

  // Powers of ten on an axis.
  function decimalBytes(value) {
    const at = Math.max(0, Math.min(5, Math.floor(Math.log10(value) / 3 + 1e-9)));
    return `${Number((value / 1000 ** at).toPrecision(3))} ${['B', 'kB', 'MB', 'GB', 'TB', 'PB'][at]}`;
  }

  // ---- links ----

  const LINK = {
    network_wait_ns: {title: 'network wait for a transfer', format: duration, words: 'how long a transfer waited for the network, on average', of: 'the link where that is longest'},
    bytes_per_s: {title: 'bandwidth of a transfer', format: rate, words: 'bytes per time that transfers waited for the network', of: 'the slowest link'},
    bytes: {title: 'bytes', format: bytes, words: 'bytes sent', of: 'all of them together'},
  };

  function links() {
    const it = data.links;
    const section = part('links', 'Links', 'What NCCL\'s proxy sent over the network, from rank to rank. Transfers inside of a host that need no proxy are not in it.');
    if (it.cells.length === 0) {
      section.append(el('p', {}, 'There are no network transfers in these files. NCCLSCOPE_PRESET=standard records them.'));
      return;
    }
    let which = 'network_wait_ns';
    const made = () => {
      const {title, format} = LINK[which];
      const cells = it.cells.map((cell) => ({
        row: cell.from, column: cell.to, value: cell[which], title: `${it.labels[cell.from]} to ${it.labels[cell.to]}`,
        lines: [cell.links > 1 ? count(cell.links, 'link') : null, `${bytes(cell.bytes)} in ${count(cell.transfers, 'transfer')}`,
          cell.network_wait_ns === null ? 'the sender\'s file is not here: network wait not known' : `network wait for a transfer: ${duration(cell.network_wait_ns)}`,
          cell.bytes_per_s === null ? null : `bandwidth of a transfer: ${rate(cell.bytes_per_s)}`].filter(Boolean),
      }));
      return map({rows: it.labels, columns: it.labels, columnTitle: 'to', cells, format, scaleTitle: title, isSquare: true});
    };
    const worst = it.links.find((link) => link.network_wait_ns !== null);
    const several = it.each > 1 ? ` Each row and column stands for ${it.each} ranks: bytes of all, bandwidth of the slowest link and wait of the longest one.` : '';
    let drawn = null;
    section.append(choice('links-of', 'show', Object.entries(LINK).map(([value, {title}]) => [value, title]), (value) => {
      which = value;
      drawn.draw();
    }));
    drawn = picture(section, {height: made().height, option: (look) => made().option(look),
      words: `Matrix of links by sender and receiver.${worst ? ` The longest network wait is from ${worst.from} to ${worst.to}: ${duration(worst.network_wait_ns)} for a transfer.` : ''} The table below has the same figures.`,
      caption: `Rows send, columns receive. Bandwidth is bytes per time that single transfers waited for the network, so links with several channels carry more. Waits are the sender's; blank: nothing was sent, or the sender's file is not here.${several}`});
    const column = (name, title, kind) => ({name, title, kind});
    const left = it.number > it.links.length ? ` (${it.links.length} of ${it.number}, the longest waits first)` : '';
    section.append(alternative(`All links, as a table${left}`, () => table('Links', [column('from', 'from', 'text'), column('to', 'to', 'text'),
      column('transfers', 'transfers', 'number'), column('bytes', 'bytes', 'bytes'), column('bytes_per_s', 'bandwidth of a transfer', 'rate'),
      column('network_wait_ns', 'network wait for a transfer', 'ns'), column('network_wait_total_ns', 'in all', 'ns')],
    it.links.map((link) => [link.from, link.to, link.transfers, link.bytes, link.bytes_per_s, link.network_wait_ns, link.network_wait_total_ns]), {markup: {name: 'links'}})));
  }

  // ---- the slowest operations ----

  function slowest() {
    const section = part('slowest', 'The slowest operations', 'How long the kernels of one kind of operation took, on all ranks, and the slowest of them with the command that opens the trace there.');
    if (data.kinds.length === 0) {
      section.append(el('p', {}, data.is_of_summaries ? 'Single operations are in traces only; ncclscope summary has percentiles for each rank.'
        : 'No kernel of NCCL has a known time in these files.'));
      return;
    }
    const name = (kind) => `${kind.name} on ${kind.communicator}`;
    let kind = data.kinds[0];
    const figures = el('dl', {class: 'figures', 'aria-live': 'polite'});
    const list = el('div');
    const option = (look) => {
      const [first, last] = [kind.lengths[0][0], kind.lengths[kind.lengths.length - 1][0]];
      const numbers = new Map(kind.lengths);
      const bins = Array.from({length: last - first + 1}, (_, place) => first + place);
      const edge = (bin) => 10 ** (bin / 10);
      const name = (bin) => duration(edge(bin));
      return {
        grid: {left: 72, right: 18, top: 14, bottom: 50},
        xAxis: axis(look, 'time of the kernel, from … on', {type: 'category', data: bins.map(name), nameGap: 30, splitLine: {show: false}, axisLabel: {hideOverlap: true}}),
        yAxis: axis(look, 'kernels', {type: 'log', min: .5, startValue: .5, nameGap: 48, axisLabel: {formatter: (it) => (it < 1 ? '' : it.toLocaleString('en'))}}),
        tooltip: {trigger: 'item', formatter: ({dataIndex}) => tip(`${duration(edge(bins[dataIndex]))} to ${duration(edge(bins[dataIndex] + 1))}`, [count(numbers.get(bins[dataIndex]) || 0, 'kernel')])},
        series: [{type: 'bar', data: bins.map((bin) => numbers.get(bin) ?? null), barCategoryGap: '12%', barMaxWidth: 34, itemStyle: {color: look.series[0]}}],
      };
    };
    const tell = () => {
      const {columns, rows} = tables[kind.table];
      const cell = (column) => rows[kind.row][at(columns, column)];
      const all = kind.lengths.reduce((sum, [, number]) => sum + number, 0);
      figures.replaceChildren(...[['kernels', all, 'number'], ['median', cell('kernel_median_ns'), 'ns'], ['95 %', cell('kernel_p95_ns'), 'ns'],
        ['99 %', cell('kernel_p99_ns'), 'ns'], ['longest', cell('kernel_max_ns'), 'ns']].map(([what, it, unit]) => el('div', {},
        el('dt', {}, what), el('dd', {'data-figure': what, 'data-value': it}, shown(it, unit)))));
      const column = (name, title, unit) => ({name, title, kind: unit});
      list.replaceChildren(table(`The slowest of ${name(kind)}`, [column('rank', 'on rank', 'text'), column('ns', 'took', 'ns'),
        column('at_ns', 'began', 'ns'), column('command', 'to look at it', 'code')],
      kind.slowest.map((slow) => [slow.rank, slow.ns, slow.at_ns, slow.command]), {markup: {name: 'slowest'}}));
    };
    let drawn = null;
    const select = el('select', {id: 'slowest-of', onchange: (event) => {
      kind = data.kinds[Number(event.target.value)];
      drawn.draw();
      drawn.box.setAttribute('aria-label', words());
      tell();
    }}, data.kinds.map((it, place) => el('option', {value: place}, name(it))));
    section.append(el('div', {class: 'controls'}, el('label', {for: 'slowest-of'}, 'operation'), select));
    const words = () => `Histogram of the times of kernels of ${name(kind)}; the longest took ${duration(kind.slowest[0].ns)}. The figures and the table beside it say the same.`;
    section.append(figures);
    const left = data.kinds_left_out > 0 ? ` ${count(data.kinds_left_out, 'kind')} of quicker operations left out.` : '';
    drawn = picture(section, {height: 260, option, words: words(),
      caption: `Both axes are logarithmic: each bar is a tenth of a power of ten. Waiting for other ranks is part of these times. An operation that several ranks had is listed once, with the rank where it took longest.${left}`});
    section.append(list);
    tell();
  }

  // ---- environment, losses, doubts ----

  function rest() {
    const losses = part('losses', 'Losses and doubts', 'What the recordings lost or could not tell, and what this page leaves out.');
    const {rows, columns} = data.losses;
    losses.append(rows.length > 0 ? table('Losses and doubts', columns, rows, {head: 1, markup: {name: 'losses'}})
      : el('p', {}, 'The recordings lost nothing and have no doubts.'));
    const notes = [...(diagnosis ? diagnosis.notes : [data.no_diagnosis]), ...data.unread.map((reason) => `Left out or cut off: ${reason}`)];
    if (notes.length > 0) losses.append(el('ul', {class: 'notes'}, notes.map((note) => el('li', {}, `${note}.`))));
    const comms = part('communicators', 'Communicators');
    comms.append(table('Communicators', data.communicators.columns, data.communicators.rows, {markup: {name: 'communicators'}}));
    const environment = part('environment', 'Environment', 'As the recordings say it. Variables are from a fixed list.');
    environment.append(table('Environment', data.environment.columns, data.environment.rows, {head: 1, markup: {name: 'environment'}}));
  }

  // ---- all of it ----

  main.replaceChildren();
  head();
  verdict();
  lateness();
  shares();
  bandwidth();
  links();
  slowest();
  rest();

  const redraw = () => pictures.forEach((it) => it.draw());
  const onPaper = (is) => {
    if (is === isPrinting) return;
    isPrinting = is;
    pictures.forEach((it) => {
      it.chart.resize(is ? {width: PAPER_WIDTH} : {width: 'auto'});
      it.draw();
    });
  };
  dark.addEventListener('change', redraw);
  print.addEventListener('change', (event) => onPaper(event.matches));
  window.addEventListener('beforeprint', () => onPaper(true));
  window.addEventListener('afterprint', () => onPaper(false));
  let width = main.clientWidth;
  new ResizeObserver(() => {
    if (isPrinting || main.clientWidth === width) return;
    width = main.clientWidth;
    pictures.forEach((it) => it.chart.resize());
  }).observe(main);
  document.documentElement.dataset.drawn = String(pictures.length);
})();
