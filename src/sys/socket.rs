//! A port of the loopback interface in a process that belongs to somebody else.
//!
//! As with files ([`super::descriptor`]), the program may close our descriptors and open its own
//! under the same numbers, so both the port and a connection are checked before use.

use std::io;
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;
use std::time::Duration;

use super::descriptor::{Descriptor, Standing};

/// An open port.
#[derive(Debug)]
pub struct Port(Descriptor);

/// A connection to one.
#[derive(Debug)]
pub struct Connection {
    descriptor: Descriptor,
    stream: ManuallyDrop<TcpStream>,
}

impl Port {
    /// Opens a port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// The operating system's reason, such as that somebody has it.
    pub fn open(port: u16) -> io::Result<Port> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        Descriptor::of(listener.into()).map(Port)
    }

    /// Whether it is still ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.0.standing() == Standing::Ours
    }

    /// Takes the next connection. Each of its reads and writes takes at most `patience`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if nobody wants one; otherwise the operating system's reason.
    pub fn accept(&self, patience: Duration) -> io::Result<Connection> {
        // SAFETY: no addresses are asked for.
        let number = unsafe { libc::accept4(self.0.number(), ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else knows.
        let descriptor = Descriptor::of(unsafe { OwnedFd::from_raw_fd(number) })?;
        // SAFETY: it is open as long as `descriptor`, which alone closes it.
        let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(descriptor.number()) });
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection { descriptor, stream })
    }
}

impl Connection {
    fn check(&self) -> io::Result<()> {
        match self.descriptor.standing() {
            Standing::Ours | Standing::Removed => Ok(()),
            Standing::Lost => Err(io::Error::from(io::ErrorKind::NotConnected)),
        }
    }
}

impl io::Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.read(into)
    }
}

impl io::Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
