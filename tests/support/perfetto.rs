//! Traces as Perfetto itself understands them: SQL queries, and a check that nothing was lost.
//!
//! A [`Trace`] is loaded by the real trace processor, of the oldest release that traces are written
//! for, in a Node process of its own (`tests/perfetto/engine.js`). The first use on a machine
//! downloads it and needs the network; later ones do not.
//!
//! The trace processor silently forgives much: an end without a begin, an arrow with one end, a
//! file that stops inside a packet. So [`Trace::check`] also reads the packets itself, and compares
//! what was written with what was imported.
//!
//! ```no_run
//! use ncclscope_tests::perfetto::Trace;
//!
//! # fn main() -> Result<(), ncclscope_tests::perfetto::Error> {
//! let trace = Trace::open("job.perfetto-trace")?;
//! assert_eq!(trace.check(), []);
//! for row in trace.rows("SELECT name, dur FROM slice") {
//!     println!("{} took {} ns", row.str("name"), row.i64("dur"));
//! }
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

mod check;
mod engine;
mod wire;
mod written;

pub use check::{Check, Problem};
pub use written::Gpu;

use engine::Engine;
use written::Written;

/// A trace, loaded by Perfetto's trace processor.
pub struct Trace {
    bytes: Vec<u8>,
    /// Present until this is dropped.
    engine: Option<RefCell<Engine>>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.into_inner().retire();
        }
    }
}

impl Trace {
    /// Loads a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, the trace processor is not available, or it refuses the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Trace, Error> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| Error::File(path.to_owned(), error))?;
        Trace::from_bytes(bytes)
    }

    /// Loads a trace from memory.
    ///
    /// # Errors
    ///
    /// If the trace processor is not available, or refuses the trace.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Trace, Error> {
        let bytes = bytes.into();
        let mut engine = Engine::empty(bytes.len())?;
        engine.load(&bytes)?;
        Ok(Trace { bytes, engine: Some(RefCell::new(engine)) })
    }

    /// Facts about the whole trace, which the viewer shows on its overview page.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        Written::read(&self.bytes).attributes
    }

    /// The GPUs that the trace describes, indexed by their number.
    pub fn gpus(&self) -> Vec<Gpu> {
        Written::read(&self.bytes).gpus
    }

    /// The trace as it was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The result of an SQL query; of the last statement if there are several.
    ///
    /// # Errors
    ///
    /// If the trace processor cannot answer the query.
    pub fn query(&self, sql: &str) -> Result<Table, Error> {
        self.engine().borrow_mut().query(sql)
    }

    /// The rows of the result of an SQL query.
    ///
    /// # Panics
    ///
    /// If the query fails: in a test that is a mistake of the test.
    #[track_caller]
    pub fn rows(&self, sql: &str) -> Vec<Row> {
        self.expect(sql).rows
    }

    /// The result of an SQL query as comma-separated lines, the first of which names the columns.
    ///
    /// # Panics
    ///
    /// If the query fails.
    #[track_caller]
    pub fn text(&self, sql: &str) -> String {
        self.expect(sql).to_string()
    }

    /// Everything wrong with the trace. No slice may be open; see [`Check`] if some must be.
    pub fn check(&self) -> Vec<Problem> {
        Check::new().run(self)
    }

    fn engine(&self) -> &RefCell<Engine> {
        self.engine.as_ref().expect("it is there until this is dropped")
    }

    #[track_caller]
    fn expect(&self, sql: &str) -> Table {
        match self.query(sql) {
            Ok(table) => table,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The result of a query. Displayed as comma-separated values.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The names of the columns.
    pub columns: Rc<[String]>,
    /// The rows, in the query's order.
    pub rows: Vec<Row>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.columns.is_empty() {
            return Ok(());
        }
        writeln!(f, "{}", self.columns.join(","))?;
        for row in &self.rows {
            let cells: Vec<String> = row.values.iter().map(ToString::to_string).collect();
            writeln!(f, "{}", cells.join(","))?;
        }
        Ok(())
    }
}

/// One row of a result; its cells are accessed by column name.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    columns: Rc<[String]>,
    values: Vec<Value>,
}

impl Row {
    /// The cell, whatever it contains.
    ///
    /// # Panics
    ///
    /// If there is no such column.
    #[track_caller]
    pub fn value(&self, column: &str) -> &Value {
        match self.columns.iter().position(|name| name == column) {
            Some(index) => &self.values[index],
            None => panic!("no column {column} among {}", self.columns.join(", ")),
        }
    }

    /// Whether the cell is NULL.
    ///
    /// # Panics
    ///
    /// If there is no such column.
    #[track_caller]
    pub fn is_null(&self, column: &str) -> bool {
        *self.value(column) == Value::Null
    }

    /// The integer in the cell.
    ///
    /// # Panics
    ///
    /// If there is no such column, or the cell contains something else.
    #[track_caller]
    pub fn i64(&self, column: &str) -> i64 {
        match self.value(column) {
            Value::Int(number) => *number,
            other => panic!("{column} is no integer: {other}"),
        }
    }

    /// The floating-point number in the cell.
    ///
    /// # Panics
    ///
    /// If there is no such column, or the cell contains something else.
    #[track_caller]
    pub fn f64(&self, column: &str) -> f64 {
        match self.value(column) {
            Value::Float(number) => *number,
            other => panic!("{column} is no floating-point number: {other}"),
        }
    }

    /// The text in the cell.
    ///
    /// # Panics
    ///
    /// If there is no such column, or the cell contains something else.
    #[track_caller]
    pub fn str(&self, column: &str) -> &str {
        match self.value(column) {
            Value::Text(text) => text,
            other => panic!("{column} is no text: {other}"),
        }
    }
}

/// The content of a cell. Displayed as a comma-separated value so that the kinds cannot be
/// confused: text that could be taken for something else is quoted.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// An integer, exact.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Int(number) => number.fmt(f),
            Value::Float(number) => fmt::Debug::fmt(number, f),
            Value::Text(text) => {
                let ambiguous = text.is_empty()
                    || text == "NULL"
                    || text.starts_with("0x")
                    || text.parse::<f64>().is_ok()
                    || text.contains([',', '"', '\n', '\r']);
                if ambiguous { write!(f, "\"{}\"", text.replace('"', "\"\"")) } else { f.write_str(text) }
            }
            Value::Blob(bytes) => {
                f.write_str("0x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Why a trace cannot be queried.
#[derive(Debug)]
pub enum Error {
    /// The trace cannot be read.
    File(PathBuf, io::Error),
    /// Node cannot be started.
    Node(io::Error),
    /// The trace processor is missing, or it died; with its last output.
    Engine(String),
    /// The trace processor refuses the trace, for this reason.
    Refused(String),
    /// The query failed, for this reason.
    Query {
        /// The query.
        sql: String,
        /// The trace processor's message.
        reason: String,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File(path, error) => write!(f, "failed to read {}: {error}", path.display()),
            Error::Node(error) => write!(
                f,
                "failed to start node, which runs Perfetto's trace processor: {error}; version 20 or \
                 newer is needed, on Debian: apt-get install nodejs"
            ),
            Error::Engine(words) => {
                write!(f, "failed to run Perfetto's trace processor: {words}")
            }
            Error::Refused(reason) => write!(f, "failed to load the trace: {reason}"),
            Error::Query { sql, reason } => write!(f, "failed to answer {sql}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace with only an empty packet.
    const EMPTY: &[u8] = &[0x0a, 0x00];

    #[test]
    fn values_keep_their_kind_and_every_digit() {
        let trace = Trace::from_bytes(EMPTY).unwrap();
        let rows = trace.rows(
            "SELECT 9223372036854775807 AS most, -1 AS minus, 1.5 AS half, 'AllReduce' AS text, \
             NULL AS empty",
        );
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].i64("most"), i64::MAX);
        assert_eq!(rows[0].i64("minus"), -1);
        assert_eq!(rows[0].f64("half"), 1.5);
        assert_eq!(rows[0].str("text"), "AllReduce");
        assert!(rows[0].is_null("empty"));
    }

    #[test]
    fn text_distinguishes_the_kinds() {
        let trace = Trace::from_bytes(EMPTY).unwrap();
        let text = trace.text(
            "SELECT 1 AS a, '1' AS b, 1.0 AS c, NULL AS d, '' AS e, 'x, y' AS f, x'00ff' AS g \
             UNION ALL SELECT 2, 'two', 2.5, 'NULL', 'a \"b\"', 'x', x''",
        );
        assert_eq!(
            text,
            "a,b,c,d,e,f,g\n\
             1,\"1\",1.0,NULL,\"\",\"x, y\",0x00ff\n\
             2,two,2.5,\"NULL\",\"a \"\"b\"\"\",x,0x\n"
        );
    }

    #[test]
    fn an_answer_may_be_large_or_empty() {
        let trace = Trace::from_bytes(EMPTY).unwrap();
        let rows = trace.rows(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 299999) \
             SELECT i, 'row ' || i AS name FROM n",
        );
        assert_eq!(rows.len(), 300_000);
        assert_eq!(rows[299_999].str("name"), "row 299999");
        assert_eq!(trace.text("SELECT name FROM slice"), "name\n");
    }

    #[test]
    fn a_wrong_query_is_an_error_and_the_next_one_works() {
        let trace = Trace::from_bytes(EMPTY).unwrap();
        let error = trace.query("SELECT nosuch FROM slice").unwrap_err();
        assert!(error.to_string().contains("nosuch"), "{error}");
        assert_eq!(trace.rows("SELECT 1 AS one")[0].i64("one"), 1);
    }

    #[test]
    fn a_trace_contains_nothing_of_an_earlier_one() {
        for _ in 0..3 {
            let trace = Trace::from_bytes(EMPTY).unwrap();
            trace.query("CREATE TABLE left_behind AS SELECT 1 AS one").unwrap();
            assert_eq!(trace.rows("SELECT one FROM left_behind").len(), 1);
        }
    }

    #[test]
    fn files_that_are_not_traces_are_refused() {
        let error = Trace::from_bytes(*b"this is not a trace").err().unwrap();
        assert!(matches!(error, Error::Refused(_)), "{error}");
        let error = Trace::open("/nonexistent/file").err().unwrap();
        assert!(matches!(error, Error::File(..)), "{error}");
    }
}
