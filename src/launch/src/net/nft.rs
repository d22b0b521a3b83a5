//! Elements of the packet filter's sets, over netlink (nfnetlink, nf_tables): some hundred microseconds each, where
//! the program `nft` takes milliseconds. What is not an element, `ruleset` gives to that program.

use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;
use wire::launch::{Permit, Protocol};

use super::netlink::{CREATE, DUMP, Message, Socket, attribute, attributes};

/// nf_tables' part of nfnetlink, and the ends of a batch.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// Messages, linux/netfilter/nf_tables.h.
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const GET_CHAIN: u16 = 4;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;
/// Attributes, likewise.
const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
/// `NF_INET_LOCAL_IN`, `NF_INET_FORWARD`, `NF_DROP`.
const LOCAL_IN: u32 = 1;
const FORWARD: u32 = 2;
const DROP: u32 = 0;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_TIMEOUT: u16 = 4;
const ELEMENT_EXPRESSION: u16 = 7;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_PACKETS: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const NFT_GOTO: i32 = -4;
/// `NFPROTO_INET`.
const FAMILY: u8 = 1;
/// Length of an interface name in a key.
const NAME: usize = 16;

/// One set of one table.
#[derive(Debug, Clone, Copy)]
pub struct Set<'a> {
    /// The table, of family `inet`.
    pub table: &'a str,
    /// The set.
    pub name: &'a str,
}

/// An element and what belongs to it.
pub struct Element {
    key: Vec<u8>,
    chain: Option<String>,
    milliseconds: Option<u64>,
}

impl Element {
    /// An interface alone.
    #[must_use]
    pub fn of(interface: &str) -> Self {
        let mut key = interface.as_bytes().to_vec();
        key.resize(NAME, 0);
        Self { key, chain: None, milliseconds: None }
    }

    /// Which leads to a chain.
    #[must_use]
    pub fn leading_to(mut self, chain: &str) -> Self {
        self.chain = Some(chain.to_owned());
        self
    }

    /// An address that an interface may reach for a while, with every protocol or on one port.
    #[must_use]
    pub fn permit(interface: &str, permit: &Permit) -> Self {
        let mut element = Self::of(interface);
        element.key.extend_from_slice(&permit.address.octets());
        if let Some((protocol, port)) = permit.port {
            let number = match protocol {
                Protocol::Tcp => libc::IPPROTO_TCP,
                Protocol::Udp => libc::IPPROTO_UDP,
            };
            element.key.extend_from_slice(&[u8::try_from(number).unwrap_or_default(), 0, 0, 0]);
            element.key.extend_from_slice(&[&port.to_be_bytes()[..], &[0, 0]].concat());
        }
        element.milliseconds = Some(u64::from(permit.seconds) * 1000);
        element
    }
}

/// Whether what the kernel tells, by its type and its payload, is that `table` was removed.
#[must_use]
pub fn is_removal(kind_told: u16, payload: &[u8], table: &str) -> bool {
    let named = || payload.get(4..).and_then(|told| text(told, TABLE_NAME));
    kind_told == kind(DELETE_TABLE) && payload.first() == Some(&FAMILY) && named().is_some_and(|name| name == table)
}

/// A chain that drops what it has no rule for.
pub struct Dropping {
    /// Whether it sees packets through the host; else those to it.
    pub forward: bool,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
}

/// A connection to nf_tables, in this network namespace.
pub struct Nft(Socket);

impl Nft {
    /// Connect.
    ///
    /// # Errors
    /// The kernel has no nf_tables, or this process may not use it.
    pub fn open() -> Result<Self, Errno> {
        Socket::open(Some(NETFILTER)).map(Self)
    }

    /// The names of all tables of family `inet`.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn tables(&mut self) -> Result<Vec<String>, Errno> {
        let mut found = Vec::new();
        self.0.dump(Message::new(kind(GET_TABLE), DUMP, &header(0)), |payload| {
            found.extend(payload.get(4..).and_then(|table| text(table, TABLE_NAME)));
        })?;
        Ok(found)
    }

    /// Whether `table` has the chain `chain`.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn has_chain(&mut self, table: &str, chain: &str) -> Result<bool, Errno> {
        let mut message = Message::new(kind(GET_CHAIN), 0, &header(0));
        message.put_text(CHAIN_TABLE, table);
        message.put_text(CHAIN_NAME, chain);
        match self.0.request(message) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Whether `set` has this number for an element.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn has_number(&mut self, set: Set<'_>, number: u32) -> Result<bool, Errno> {
        self.has(set, &number.to_ne_bytes())
    }

    fn has(&mut self, set: Set<'_>, key: &[u8]) -> Result<bool, Errno> {
        let element = Element { key: key.to_vec(), chain: None, milliseconds: None };
        match self.0.request(message(GET_ELEMENT, 0, set, &[element])) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Chains of other tables that drop what they have no rule for, of packets to the host or through it.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn dropping_chains(&mut self) -> Result<Vec<Dropping>, Errno> {
        let mut found = Vec::new();
        // Of every family.
        self.0.dump(Message::new(kind(GET_CHAIN), DUMP, &[0; 4]), |payload| {
            found.extend(payload.get(4..).and_then(dropping));
        })?;
        Ok(found)
    }

    /// Put `element` into `set`, in the place of one with the same key.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn put(&mut self, set: Set<'_>, element: &Element) -> Result<(), Errno> {
        let elements = std::slice::from_ref(element);
        let new = || message(NEW_ELEMENT, CREATE, set, elements);
        // A batch that fails waits for every processor, some 13 ms: look first.
        if !self.has(set, &element.key)? {
            return self.batch(vec![new()]);
        }
        match self.batch(vec![message(DELETE_ELEMENT, 0, set, elements), new()]) {
            // Its time was up meanwhile.
            Err(Errno::NOENT) => self.batch(vec![new()]),
            other => other,
        }
    }

    /// Take the element with this key out of `set`; done also if there is none.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn take(&mut self, set: Set<'_>, key: &[u8]) -> Result<(), Errno> {
        let element = Element { key: key.to_vec(), chain: None, milliseconds: None };
        match self.batch(vec![message(DELETE_ELEMENT, 0, set, &[element])]) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Every element of `set`: its key, and the packets that its counter has counted.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn elements(&mut self, set: Set<'_>) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
        let mut found = Vec::new();
        self.0.dump(message(GET_ELEMENT, DUMP, set, &[]), |payload| {
            let list = payload.get(4..).and_then(|body| attribute(body, LIST_ELEMENTS)).unwrap_or_default();
            found.extend(attributes(list).filter_map(|(_, element)| {
                let key = attribute(attribute(element, ELEMENT_KEY)?, DATA_VALUE)?;
                Some((key.to_vec(), packets(element).unwrap_or(0)))
            }));
        })?;
        Ok(found)
    }

    fn batch(&mut self, messages: Vec<Message>) -> Result<(), Errno> {
        let begin = Message::unacknowledged(BATCH_BEGIN, &header(SUBSYSTEM));
        let end = Message::unacknowledged(BATCH_END, &header(SUBSYSTEM));
        self.0.batch(begin, messages, end)
    }
}

/// The interface that a key begins with.
#[must_use]
pub fn interface_of(key: &[u8]) -> &[u8] {
    let name = key.get(..NAME).unwrap_or(key);
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn dropping(chain: &[u8]) -> Option<Dropping> {
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
    let hook = number(attribute(attribute(chain, CHAIN_HOOK)?, HOOK_NUMBER)?)?;
    let drops = number(attribute(chain, CHAIN_POLICY)?)? == DROP;
    let found =
        Dropping { forward: hook == FORWARD, table: text(chain, CHAIN_TABLE)?, chain: text(chain, CHAIN_NAME)? };
    (drops && [LOCAL_IN, FORWARD].contains(&hook)).then_some(found)
}

/// An attribute that is a text, which ends with a zero.
fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let bytes = attribute(attributes, kind)?;
    Some(String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next()?).into_owned())
}

fn packets(element: &[u8]) -> Option<u64> {
    let data = attribute(attribute(element, ELEMENT_EXPRESSION)?, EXPRESSION_DATA)?;
    Some(u64::from_be_bytes(attribute(data, COUNTER_PACKETS)?.try_into().ok()?))
}

fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// `struct nfgenmsg`.
fn header(resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    let family = if resource == 0 { FAMILY } else { 0 };
    [family, 0, high, low]
}

fn message(what: u16, flags: u16, set: Set<'_>, elements: &[Element]) -> Message {
    let mut message = Message::new(kind(what), flags, &header(0));
    message.put_text(LIST_TABLE, set.table);
    message.put_text(LIST_SET, set.name);
    if elements.is_empty() {
        return message;
    }
    message.nest(LIST_ELEMENTS, |list| {
        for element in elements {
            list.nest(LIST_ELEMENT, |it| write(it, element, what == NEW_ELEMENT));
        }
    });
    message
}

fn write(message: &mut Message, element: &Element, new: bool) {
    message.nest(ELEMENT_KEY, |key| key.put(DATA_VALUE, &element.key));
    if let (Some(chain), true) = (&element.chain, new) {
        message.nest(ELEMENT_DATA, |data| {
            data.nest(DATA_VERDICT, |verdict| {
                verdict.put(VERDICT_CODE, &NFT_GOTO.to_be_bytes());
                verdict.put_text(VERDICT_CHAIN, chain);
            });
        });
    }
    if let (Some(milliseconds), true) = (element.milliseconds, new) {
        message.put(ELEMENT_TIMEOUT, &milliseconds.to_be_bytes());
    }
}
