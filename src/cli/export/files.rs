//! The tables of one trace as Parquet files, each at `TABLE/job=JOB/rank=RANK/PROCESS.parquet`.
//!
//! Rows are collected up to a row group, sorted, and written to a hidden file. When the whole trace
//! has been read, the files get their final names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::{Int32Type, TimestampNanosecondType};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Int32Array, Int64Array, PrimitiveArray, RecordBatch, StringArray,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::rows::{Cell, Process, Sink};
use super::schema::{Name, TABLES, Table, Type, VERSION};
use crate::cli::Reason;
use crate::sys;

/// Rows of a row group.
const ROWS: usize = 1 << 17;
/// Zstandard's own default.
const LEVEL: i32 = 3;
/// The rank of a process that does not know it, as Hive writes it: engines read it as NULL.
const NO_RANK: &str = "__HIVE_DEFAULT_PARTITION__";

/// A written file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    /// Below the folder of all tables.
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) rows: u64,
}

/// The files of one trace.
pub(super) struct Files<'a> {
    out: &'a Path,
    trace: &'a Path,
    /// The job's name, if the command line gives one.
    job: Option<&'a str>,
    /// By process; in the order of [`TABLES`].
    processes: FxHashMap<i64, Vec<Rows>>,
}

impl<'a> Files<'a> {
    pub(super) fn new(out: &'a Path, trace: &'a Path, job: Option<&'a str>) -> Files<'a> {
        Files { out, trace, job, processes: FxHashMap::default() }
    }

    /// Gives the files their names.
    ///
    /// # Errors
    ///
    /// If one cannot be written. Then none has its name, unless renaming failed.
    pub(super) fn finish(mut self) -> Result<Vec<Written>, Reason> {
        let mut written = Vec::new();
        for rows in self.processes.values_mut().flatten() {
            written.push(rows.close(self.out)?);
        }
        for rows in self.processes.values_mut().flatten() {
            rows.publish(self.out)?;
        }
        written.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(written)
    }

    /// The folder of a process below that of a table.
    fn partition(&self, process: &Process) -> Result<String, Reason> {
        let job = process.job_or(self.job, self.trace)?;
        let rank = process.rank().map_or_else(|| NO_RANK.to_owned(), |rank| rank.to_string());
        Ok(format!("job={}/rank={rank}", escaped(job)))
    }
}

impl Sink for Files<'_> {
    fn row(&mut self, process: &Process, table: Name, row: &[Cell<'_>]) -> Result<(), Reason> {
        if !self.processes.contains_key(&process.id()) {
            let partition = self.partition(process)?;
            let place =
                |table: &Table| PathBuf::from(format!("{}/{partition}/{:016x}.parquet", table.name, process.id()));
            let all = TABLES.iter().map(|table| Rows::new(table, place(table), process.to_utc())).collect();
            self.processes.insert(process.id(), all);
        }
        let Some(all) = self.processes.get_mut(&process.id()) else { return Ok(()) };
        let rows = &mut all[table as usize];
        rows.push(row);
        if rows.count == ROWS { rows.write(self.out) } else { Ok(()) }
    }
}

impl Drop for Files<'_> {
    fn drop(&mut self) {
        // What was not finished.
        for rows in self.processes.values().flatten() {
            if let Some(writer) = &rows.writer {
                let _ = fs::remove_file(&writer.hidden);
            }
        }
    }
}

/// A job's name as a part of a path, escaped as Hive does.
fn escaped(name: &str) -> String {
    const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    utf8_percent_encode(name, &PLAIN).to_string()
}

/// The rows of a table that are not written yet, and its file.
struct Rows {
    table: &'static Table,
    schema: Arc<Schema>,
    /// What to add to times.
    to_utc: i64,
    columns: Vec<Values>,
    count: usize,
    place: PathBuf,
    writer: Option<Writer>,
    /// Rows in the file.
    written: u64,
}

struct Writer {
    hidden: PathBuf,
    /// Until the file is complete.
    file: Option<ArrowWriter<File>>,
}

/// The values of a column. Absent ones are 0.
struct Values {
    numbers: Numbers,
    is_there: Vec<bool>,
    /// How many are absent.
    absent: usize,
    texts: FxHashMap<Box<str>, i32>,
}

enum Numbers {
    Long(Vec<i64>),
    Int(Vec<i32>),
}

impl Values {
    fn new(of: Type) -> Values {
        let numbers = match of {
            Type::Time | Type::Long => Numbers::Long(Vec::new()),
            Type::Int | Type::Text | Type::Flag => Numbers::Int(Vec::new()),
        };
        Values { numbers, is_there: Vec::new(), absent: 0, texts: FxHashMap::default() }
    }

    fn push(&mut self, cell: Cell<'_>, to_utc: i64) {
        let number = match cell {
            Cell::None => 0,
            Cell::Time(time) => time.0.cast_signed().wrapping_add(to_utc),
            Cell::Number(number) => number,
            Cell::Flag(flag) => flag.into(),
            Cell::Text(text) => match self.texts.get(text) {
                Some(number) => (*number).into(),
                None => {
                    let number = self.texts.len() as i32;
                    self.texts.insert(text.into(), number);
                    number.into()
                }
            },
        };
        self.is_there.push(cell != Cell::None);
        self.absent += usize::from(cell == Cell::None);
        match &mut self.numbers {
            Numbers::Long(all) => all.push(number),
            Numbers::Int(all) => all.push(number as i32),
        }
    }

    /// The column, with its rows in this order. Empties it.
    fn take(&mut self, of: Type, order: &[u32]) -> Result<ArrayRef, arrow_schema::ArrowError> {
        let there = std::mem::take(&mut self.is_there);
        let valid =
            (std::mem::take(&mut self.absent) > 0).then(|| order.iter().map(|place| there[*place as usize]).collect());
        let texts = std::mem::take(&mut self.texts);
        Ok(match &mut self.numbers {
            Numbers::Long(all) => {
                let values: Vec<i64> = order.iter().map(|place| all[*place as usize]).collect();
                all.clear();
                match of {
                    Type::Time => Arc::new(
                        PrimitiveArray::<TimestampNanosecondType>::new(values.into(), valid).with_timezone("UTC"),
                    ),
                    _ => Arc::new(Int64Array::new(values.into(), valid)),
                }
            }
            Numbers::Int(all) => {
                let values: Vec<i32> = order.iter().map(|place| all[*place as usize]).collect();
                all.clear();
                match of {
                    Type::Text => {
                        let mut words = vec![""; texts.len()];
                        texts.iter().for_each(|(text, number)| words[*number as usize] = text);
                        let keys = Int32Array::new(values.into(), valid);
                        Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::new(StringArray::from(words)))?)
                    }
                    Type::Flag => {
                        let flags: Vec<bool> = values.iter().map(|flag| *flag != 0).collect();
                        Arc::new(BooleanArray::new(flags.into(), valid))
                    }
                    _ => Arc::new(Int32Array::new(values.into(), valid)),
                }
            }
        })
    }
}

impl Rows {
    fn new(table: &'static Table, place: PathBuf, to_utc: i64) -> Rows {
        Rows {
            table,
            schema: schema(table),
            to_utc,
            columns: table.columns.iter().map(|column| Values::new(column.of)).collect(),
            count: 0,
            place,
            writer: None,
            written: 0,
        }
    }

    fn push(&mut self, row: &[Cell<'_>]) {
        debug_assert_eq!(row.len(), self.columns.len(), "{}", self.table.name);
        self.columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(*cell, self.to_utc));
        self.count += 1;
    }

    /// Writes a row group.
    fn write(&mut self, out: &Path) -> Result<(), Reason> {
        let mut order: Vec<u32> = (0..self.count as u32).collect();
        if let Some(column) = self.table.sorted_by().map(|place| &self.columns[place])
            && let Numbers::Long(times) = &column.numbers
        {
            // Stable, and those without a time come last, as the file says.
            order.sort_by_key(|row| (!column.is_there[*row as usize], times[*row as usize]));
        }
        let path = out.join(&self.place);
        let columns = self.columns.iter_mut().zip(self.table.columns);
        let columns: Result<Vec<ArrayRef>, _> =
            columns.map(|(values, column)| values.take(column.of, &order)).collect();
        let failed = |error: ParquetError| Reason::failed(format!("write {}", path.display()))(error);
        let batch = columns.and_then(|columns| RecordBatch::try_new(Arc::clone(&self.schema), columns));
        let batch = batch.map_err(|error| failed(error.into()))?;
        (self.written, self.count) = (self.written + self.count as u64, 0);
        self.open(&path)?;
        let Some(Writer { file: Some(file), .. }) = &mut self.writer else { return Ok(()) };
        if batch.num_rows() > 0 {
            file.write(&batch).and_then(|()| file.flush()).map_err(failed)?;
        }
        Ok(())
    }

    /// Opens the hidden file, if it is not.
    fn open(&mut self, path: &Path) -> Result<(), Reason> {
        if self.writer.is_some() {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Reason::write(folder))?;
        }
        let hidden = hidden(path);
        let file = File::create(&hidden).map_err(Reason::write(&hidden))?;
        let made = ArrowWriter::try_new(file, Arc::clone(&self.schema), Some(properties(self.table)));
        let file = made.map_err(Reason::failed(format!("write {}", hidden.display())))?;
        self.writer = Some(Writer { hidden, file: Some(file) });
        Ok(())
    }

    /// Completes the hidden file. A table without rows has a file, too, so that readers find it.
    fn close(&mut self, out: &Path) -> Result<Written, Reason> {
        if self.count > 0 || self.writer.is_none() {
            self.write(out)?;
        }
        let path = out.join(&self.place);
        let failed = Reason::failed(format!("write {}", path.display()));
        let Some(writer) = &mut self.writer else { return Err("there is no file to complete".into()) };
        if let Some(file) = writer.file.take() {
            file.close().map_err(failed)?;
        }
        let bytes = fs::metadata(&writer.hidden).map_err(Reason::read(&writer.hidden))?.len();
        Ok(Written { path: self.place.clone(), bytes, rows: self.written })
    }

    fn publish(&mut self, out: &Path) -> Result<(), Reason> {
        let path = out.join(&self.place);
        if let Some(writer) = self.writer.take() {
            fs::rename(&writer.hidden, &path).map_err(Reason::write(&path))?;
        }
        remove_hidden(&path);
        Ok(())
    }
}

/// The name of a file until it is complete: engines skip names that begin with a dot. Another
/// process that writes the same file uses another name.
fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}-{}{PART}", escaped(&sys::host_name()), std::process::id()))
}

/// The ending of hidden files.
const PART: &str = ".part";

/// Removes what interrupted exports left behind of a file that is complete now.
fn remove_hidden(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
    let begin = format!(".{}.", name.to_string_lossy());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&begin) && name.ends_with(PART) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn schema(table: &Table) -> Arc<Schema> {
    let field = |column: &super::schema::Column| {
        let of = match column.of {
            Type::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            Type::Long => DataType::Int64,
            Type::Int => DataType::Int32,
            Type::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            Type::Flag => DataType::Boolean,
        };
        let said = [("unit", column.unit), ("description", column.about)].into_iter().filter(|it| !it.1.is_empty());
        let is_optional = column.name != "process";
        Field::new(column.name, of, is_optional)
            .with_metadata(said.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>())
    };
    Arc::new(Schema::new(table.columns.iter().map(field).collect::<Vec<_>>()))
}

fn properties(table: &Table) -> WriterProperties {
    let said = |key: &str, value: &str| KeyValue::new(format!("ncclscope.{key}"), value.to_owned());
    let level = ZstdLevel::try_new(LEVEL).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("ncclscope ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_row_count(Some(ROWS))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(vec![
            said("schema_version", &VERSION.to_string()),
            said("table", table.name),
            said("about", table.about),
        ]));
    if let Some(place) = table.sorted_by() {
        let by = SortingColumn { column_idx: place as i32, descending: false, nulls_first: false };
        properties = properties.set_sorting_columns(Some(vec![by]));
    }
    for column in table.columns.iter().filter(|column| is_delta(table, column)) {
        let path = ColumnPath::from(column.name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}

/// Whether most values of a column are different, and close to those of the previous row.
fn is_delta(table: &Table, column: &super::schema::Column) -> bool {
    table.sorted_by().is_some()
        && (column.of == Type::Time
            || column.of == Type::Long
                && (column.name.ends_with("_ns") || matches!(column.name, "operation" | "seq" | "correlation")))
}
