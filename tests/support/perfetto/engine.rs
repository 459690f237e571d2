//! The trace processor's process, and the part of its protocol for loading and querying a trace.

use std::io::{self, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use super::wire::{self, Message, fields, fixed64s, varints};
use super::{Error, Row, Table, Value};

/// Perfetto's `TraceProcessorRpc`: the requests made here, and its fields.
mod rpc {
    pub(super) const APPEND_TRACE_DATA: u64 = 1;
    pub(super) const FINALIZE_TRACE_DATA: u64 = 2;
    pub(super) const QUERY_STREAMING: u64 = 3;
    pub(super) const RESET_TRACE_PROCESSOR: u64 = 11;

    pub(super) const REQUEST: u64 = 2;
    pub(super) const FATAL_ERROR: u64 = 5;
    pub(super) const APPEND_ARGS: u64 = 101;
    pub(super) const QUERY_ARGS: u64 = 103;
    pub(super) const APPEND_RESULT: u64 = 201;
    pub(super) const QUERY_RESULT: u64 = 203;
    pub(super) const FINALIZE_RESULT: u64 = 212;
}

/// Bytes of trace in one request.
const CHUNK: usize = 16 << 20;

/// Up to this trace size, code that compiles fast beats code that runs fast: it starts in 0.15 s
/// instead of 0.45 s.
const SMALL: usize = 4 << 20;

/// Idle processes waiting for another trace: unloading one takes much less time than starting. They
/// end with this process, which closes their input.
static IDLE: Mutex<Vec<Engine>> = Mutex::new(Vec::new());

/// A running trace processor, killed on drop.
#[derive(Debug)]
pub(super) struct Engine {
    /// Its code was compiled for a fast start.
    is_small: bool,
    /// It has answered every request.
    is_done: bool,
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Engine {
    /// An engine for a trace of `size` bytes, with nothing loaded.
    pub(super) fn empty(size: usize) -> Result<Engine, Error> {
        let is_small = size <= SMALL;
        let idle = {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            idle.iter().position(|engine| engine.is_small == is_small).map(|place| idle.swap_remove(place))
        };
        if let Some(mut engine) = idle
            && engine.reset().is_ok()
        {
            return Ok(engine);
        }
        Engine::start(is_small)
    }

    /// Keeps it for another trace, unless an answer is outstanding.
    pub(super) fn retire(self) {
        if self.is_done {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }

    fn start(is_small: bool) -> Result<Engine, Error> {
        let mut command = Command::new("node");
        if is_small {
            command.arg("--liftoff-only");
        }
        let mut process = command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/perfetto/engine.js"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::Node)?;
        let requests = process.stdin.take().expect("it was asked for");
        let replies = BufReader::new(process.stdout.take().expect("it was asked for"));
        Ok(Engine { is_small, is_done: true, process, requests, replies })
    }

    /// Unloads the trace.
    fn reset(&mut self) -> Result<(), Error> {
        self.send(Message::new().varint(rpc::REQUEST, rpc::RESET_TRACE_PROCESSOR))?;
        self.receive(rpc::APPEND_RESULT)?;
        self.is_done = true;
        Ok(())
    }

    pub(super) fn load(&mut self, trace: &[u8]) -> Result<(), Error> {
        for chunk in trace.chunks(CHUNK) {
            let request = Message::new().varint(rpc::REQUEST, rpc::APPEND_TRACE_DATA);
            self.send(request.bytes(rpc::APPEND_ARGS, chunk))?;
            let reply = self.receive(rpc::APPEND_RESULT)?;
            refusal(&reply, 2)?;
        }
        self.send(Message::new().varint(rpc::REQUEST, rpc::FINALIZE_TRACE_DATA))?;
        let reply = self.receive(rpc::FINALIZE_RESULT)?;
        refusal(&reply, 1)?;
        self.is_done = true;
        Ok(())
    }

    pub(super) fn query(&mut self, sql: &str) -> Result<Table, Error> {
        let request = Message::new().varint(rpc::REQUEST, rpc::QUERY_STREAMING);
        self.send(request.bytes(rpc::QUERY_ARGS, Message::new().bytes(1, sql)))?;

        let mut answer = Answer::default();
        while !answer.complete {
            let reply = self.receive(rpc::QUERY_RESULT)?;
            answer.add(&reply).ok_or_else(garbled)?;
        }
        self.is_done = true;
        if let Some(reason) = answer.error {
            let sql = sql.to_owned();
            return Err(Error::Query { sql, reason });
        }
        Ok(answer.into_table())
    }

    fn send(&mut self, request: Message) -> Result<(), Error> {
        self.is_done = false;
        let message = Message::new().bytes(1, request);
        let sent = self.requests.write_all(message.as_ref());
        sent.map_err(|error| self.last_words(&error))
    }

    /// The `result` field of the next reply; empty if it is missing.
    fn receive(&mut self, result: u64) -> Result<Vec<u8>, Error> {
        let reply = match read_message(&mut self.replies) {
            Ok(reply) => reply,
            Err(error) => return Err(self.last_words(&error)),
        };
        let mut found = Vec::new();
        for field in fields(&reply) {
            match field.map_err(|_| garbled())? {
                (rpc::FATAL_ERROR, wire::Value::Bytes(words)) => {
                    return Err(Error::Engine(text(words)));
                }
                (number, wire::Value::Bytes(bytes)) if number == result => found = bytes.to_vec(),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Why the process stopped answering: it is ending, and prints the reason before its end.
    fn last_words(&mut self, error: &io::Error) -> Error {
        let mut words = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            let _ = stderr.read_to_string(&mut words);
        }
        match words.trim() {
            "" => Error::Engine(format!("it stopped without a word: {error}")),
            words => Error::Engine(words.to_owned()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Perfetto's `QueryResult`, from any number of messages.
#[derive(Default)]
struct Answer {
    columns: Vec<String>,
    values: Vec<Value>,
    error: Option<String>,
    complete: bool,
}

impl Answer {
    fn add(&mut self, result: &[u8]) -> Option<()> {
        for field in fields(result) {
            match field.ok()? {
                (1, wire::Value::Bytes(name)) => self.columns.push(text(name)),
                (2, wire::Value::Bytes(reason)) => self.error = Some(text(reason)),
                (3, wire::Value::Bytes(batch)) => self.add_batch(batch)?,
                _ => {}
            }
        }
        Some(())
    }

    /// A batch contains the kinds of its cells, and the values of each kind in separate lists.
    fn add_batch(&mut self, batch: &[u8]) -> Option<()> {
        let mut kinds: &[u8] = &[];
        let mut integers: &[u8] = &[];
        let mut floats: &[u8] = &[];
        let mut blobs = Vec::new();
        let mut strings: &[u8] = &[];
        for field in fields(batch) {
            match field.ok()? {
                (1, wire::Value::Bytes(packed)) => kinds = packed,
                (2, wire::Value::Bytes(packed)) => integers = packed,
                (3, wire::Value::Bytes(packed)) => floats = packed,
                (4, wire::Value::Bytes(blob)) => blobs.push(blob.to_vec()),
                (5, wire::Value::Bytes(joined)) => strings = joined,
                (6, wire::Value::Varint(last)) => self.complete = last != 0,
                _ => {}
            }
        }
        let mut integers = varints(integers);
        let mut floats = fixed64s(floats);
        let mut blobs = blobs.into_iter();
        let mut strings = strings.split(|&byte| byte == 0);
        for kind in varints(kinds) {
            self.values.push(match kind {
                1 => Value::Null,
                2 => Value::Int(integers.next()?.cast_signed()),
                3 => Value::Float(f64::from_bits(floats.next()?)),
                4 => Value::Text(text(strings.next()?)),
                5 => Value::Blob(blobs.next()?),
                _ => return None,
            });
        }
        Some(())
    }

    fn into_table(self) -> Table {
        let columns: Rc<[String]> = self.columns.into();
        let mut values = self.values.into_iter().peekable();
        let mut rows = Vec::new();
        while !columns.is_empty() && values.peek().is_some() {
            rows.push(Row { columns: columns.clone(), values: values.by_ref().take(columns.len()).collect() });
        }
        Table { columns, rows }
    }
}

/// One message of a `TraceProcessorRpcStream`.
fn read_message(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut header = Vec::new();
    // The tag, one byte, then the length.
    while header.len() < 2 || header.last().is_some_and(|byte| *byte >= 0x80) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        header.push(byte[0]);
    }
    let length = wire::varint(&header[1..]).filter(|_| header[0] == 0x0a);
    let (length, _) = length.ok_or(io::ErrorKind::InvalidData)?;
    let mut message = Vec::new();
    stream.take(length).read_to_end(&mut message)?;
    Ok(message)
}

/// The trace processor's objection, if field number `field` of its reply holds one.
fn refusal(reply: &[u8], field: u64) -> Result<(), Error> {
    for found in fields(reply) {
        match found.map_err(|_| garbled())? {
            (number, wire::Value::Bytes(reason)) if number == field && !reason.is_empty() => {
                return Err(Error::Refused(text(reason)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn garbled() -> Error {
    Error::Engine("its reply cannot be read".to_owned())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
