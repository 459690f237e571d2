//! The port, and which process has it if we cannot get it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::cli::reason::Reason;

/// Listens on a port of the loopback interface only.
pub(super) fn listen(port: u16) -> Result<TcpListener, Reason> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Reason::Refused(taken(port)),
        _ => Reason::Failed(format!("listen on 127.0.0.1:{port}"), error.into()),
    })
}

fn taken(port: u16) -> String {
    let elsewhere = "Perfetto's viewer reads from no other port of this machine; only a copy of it does, given with \
                     --ui FOLDER --port NUMBER";
    let Some(holder) = Holder::of(port) else {
        return format!(
            "port {port} is taken, by a process that cannot be seen from here (in a container, or a forwarded port of \
             the machine around it); free it and try again. {elsewhere}"
        );
    };
    match holder {
        Holder { process: Some((pid, name)), .. } if name.starts_with("ncclscope") => format!(
            "port {port} is taken by another ncclscope open (pid {pid}), which waits for its trace to be read: open \
             its link first, or end it with kill {pid}"
        ),
        Holder { process: Some((pid, name)), .. } if name.starts_with("ssh") => format!(
            "port {port} is taken by {name} (pid {pid}): somebody's ssh brings that port of another machine here. End \
             that connection and try again. {elsewhere}"
        ),
        Holder { process: Some((pid, name)), .. } => {
            format!("port {port} is taken by {name} (pid {pid}): end it with kill {pid} and try again. {elsewhere}")
        }
        Holder { uid, .. } => format!(
            "port {port} is taken by a process of {}, which may not be looked at: ask for it to be ended. {elsewhere}",
            user(uid)
        ),
    }
}

/// Who listens on a port.
struct Holder {
    uid: u32,
    /// Pid and name, if we may see them.
    process: Option<(u32, String)>,
}

impl Holder {
    fn of(port: u16) -> Option<Holder> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        let table: String = tables.iter().filter_map(|table| fs::read_to_string(table).ok()).collect();
        let (uid, socket) = table.lines().find_map(|line| listener(line, port))?;
        Some(Holder { uid, process: process_with(&format!("socket:[{socket}]")) })
    }
}

/// The owner and the socket in a line of the kernel's table, if it is a listener on that port.
fn listener(line: &str, port: u16) -> Option<(u32, u64)> {
    const LISTENS: &str = "0A";
    let mut words = line.split_whitespace();
    let local = words.nth(1)?;
    let state = words.nth(1)?;
    let (uid, socket) = (words.nth(3)?, words.nth(1)?);
    let is_port = u16::from_str_radix(local.rsplit_once(':')?.1, 16) == Ok(port);
    (is_port && state == LISTENS).then_some((uid.parse().ok()?, socket.parse().ok()?))
}

/// The process that has a file open.
fn process_with(file: &str) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target.as_os_str() == file)
    })?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim().to_owned()))
}

fn user(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut words = line.split(':');
        let (name, id) = (words.next()?, words.nth(1)?);
        (id.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("user {uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_table_is_read() {
        let line =
            "   1: 0100007F:2329 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 54321 1 0 100";
        assert_eq!(listener(line, 9001), Some((1000, 54321)));
        assert_eq!(listener(line, 9002), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), 9001), None);
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue", 9001), None);
    }

    #[test]
    fn the_process_with_the_port_is_named() {
        let mine = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = mine.local_addr().unwrap().port();
        let reason = listen(port).unwrap_err().to_string();
        assert!(reason.contains(&format!("port {port} is taken by ")), "{reason}");
        assert!(reason.contains(&format!("pid {}", std::process::id())), "{reason}");
    }

    #[test]
    fn users_have_names() {
        assert_eq!(user(0), "root");
        assert_eq!(user(4_294_000_000), "user 4294000000");
    }
}
