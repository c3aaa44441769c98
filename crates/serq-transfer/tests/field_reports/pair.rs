//! A source and a reader, with a mail box each that the test empties, and clocks that go when it says so.

use serq_transfer::protocol::reader::{self, Canary, Load, Mode, Reader};
use serq_transfer::protocol::source::{self, Source};
use serq_transfer::protocol::{
    Address, BlockTable, Config, Envelope, Failure, Incarnation, Message, Offer, Otherwise, Peer, Policy, Session,
    Time, TransferId,
};

pub(crate) const SOURCE: Address = Address(1);
pub(crate) const READER: Address = Address(2);
pub(crate) const SECOND: u64 = 1_000_000;
/// The source's blocks and the reader's, of 4 tokens; a prompt of 9 is loaded but for its last token.
pub(crate) const SOURCE_BLOCKS: [u32; 3] = [10, 11, 12];
pub(crate) const READER_BLOCKS: [u32; 2] = [20, 21];

pub(crate) fn peer(address: Address, incarnation: u64) -> Peer {
    Peer { address, incarnation: Incarnation(incarnation) }
}

pub(crate) fn id(number: u128) -> TransferId {
    TransferId(number)
}

pub(crate) struct Pair {
    pub(crate) source: Source,
    pub(crate) reader: Reader,
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) to_source: Vec<Envelope>,
    pub(crate) to_reader: Vec<Envelope>,
    /// What was asked for but messages and wakes.
    pub(crate) source_did: Vec<source::Action>,
    pub(crate) reader_did: Vec<reader::Action>,
    pub(crate) policy: Policy,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(Config { part_runs: 1, window: 1, ..Config::default() })
    }

    pub(crate) fn with(config: Config) -> Pair {
        Pair {
            source: Source::new(peer(SOURCE, 1), b"same".to_vec(), b"canary".to_vec(), config.clone()),
            reader: Reader::new(peer(READER, 1), b"same".to_vec(), config.clone()),
            config,
            now: Time(77 * SECOND),
            to_source: Vec::new(),
            to_reader: Vec::new(),
            source_did: Vec::new(),
            reader_did: Vec::new(),
            policy: Policy { retries: 0, otherwise: Otherwise::Recompute },
        }
    }

    /// Another process at the source's address.
    pub(crate) fn restart_source(&mut self, incarnation: u64) {
        let me = peer(SOURCE, incarnation);
        self.source = Source::new(me, b"same".to_vec(), b"canary".to_vec(), self.config.clone());
    }

    pub(crate) fn restart_reader(&mut self, incarnation: u64) {
        self.reader = Reader::new(peer(READER, incarnation), b"same".to_vec(), self.config.clone());
    }

    pub(crate) fn tell_source(&mut self, fact: source::Fact) {
        let mut actions = Vec::new();
        self.source.handle(self.now, fact, &mut actions);
        self.source.check(self.now);
        for action in actions {
            match action {
                source::Action::Send(envelope) => self.to_reader.push(envelope),
                source::Action::WakeAt(_) => {}
                action => self.source_did.push(action),
            }
        }
    }

    pub(crate) fn tell_reader(&mut self, fact: reader::Fact) {
        let mut actions = Vec::new();
        self.reader.handle(self.now, fact, &mut actions);
        self.reader.check(self.now);
        for action in actions {
            match action {
                reader::Action::Send(envelope) => self.to_source.push(envelope),
                reader::Action::ReadCanary { peer, session, .. } => {
                    let canary = Canary::Right;
                    self.tell_reader(reader::Fact::CanaryRead { source: peer.address, session, canary });
                }
                reader::Action::WakeAt(_) => {}
                action => self.reader_did.push(action),
            }
        }
    }

    /// Delivers until nobody has anything to say.
    pub(crate) fn deliver(&mut self) {
        while !self.to_source.is_empty() || !self.to_reader.is_empty() {
            for envelope in std::mem::take(&mut self.to_source) {
                self.tell_source(source::Fact::Message(envelope));
            }
            for envelope in std::mem::take(&mut self.to_reader) {
                self.tell_reader(reader::Fact::Message(envelope));
            }
        }
    }

    pub(crate) fn deliver_to_reader(&mut self) {
        for envelope in std::mem::take(&mut self.to_reader) {
            self.tell_reader(reader::Fact::Message(envelope));
        }
    }

    /// Lets time pass, a second at a time, with a network.
    pub(crate) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.tick();
            self.deliver();
        }
    }

    /// Lets time pass while nothing that is said arrives.
    pub(crate) fn pass_without_network(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.tick();
            self.to_source.clear();
            self.to_reader.clear();
        }
    }

    fn tick(&mut self) {
        self.now = self.now.after(SECOND);
        self.tell_source(source::Fact::Woken);
        self.tell_reader(reader::Fact::Woken);
    }

    pub(crate) fn connect(&mut self) {
        self.tell_reader(reader::Fact::Discovered { source: SOURCE });
        self.deliver();
        assert!(self.reader.is_connected(SOURCE));
    }

    pub(crate) fn expect(&mut self, number: u128) {
        self.tell_source(source::Fact::Expected { id: id(number) });
    }

    pub(crate) fn finish(&mut self, number: u128) {
        let table = BlockTable::in_order(4, 0, 9, &SOURCE_BLOCKS);
        self.tell_source(source::Fact::PrefillFinished { id: id(number), table });
    }

    pub(crate) fn offer(&self) -> Offer {
        let offered = self.source_did.iter().rev().find_map(|action| match action {
            source::Action::Offered { offer, .. } => Some(offer.clone()),
            _ => None,
        });
        offered.expect("a prefill has finished")
    }

    pub(crate) fn queue(&mut self, number: u128, mode: Mode, concurrent: bool, offer: Option<Offer>) {
        let load = Load { id: id(number), source: SOURCE, mode, concurrent, offer, policy: self.policy };
        self.tell_reader(reader::Fact::Queued(load));
    }

    pub(crate) fn reserve(&mut self, number: u128) {
        let table = BlockTable::in_order(4, 0, 8, &READER_BLOCKS);
        self.tell_reader(reader::Fact::Reserved { id: id(number), table });
    }

    /// A pull whose read has been posted and not ended; its attempt.
    pub(crate) fn reading(&mut self, number: u128) -> u64 {
        self.connect();
        self.expect(number);
        self.finish(number);
        let offer = self.offer();
        self.queue(number, Mode::Pull, false, Some(offer));
        self.reserve(number);
        self.attempt()
    }

    /// A push whose first part has been posted and not ended; its attempt.
    pub(crate) fn writing(&mut self, number: u128) -> u64 {
        self.connect();
        self.expect(number);
        self.finish(number);
        self.queue(number, Mode::Push, false, None);
        self.reserve(number);
        self.deliver();
        self.written_attempt()
    }

    /// The attempt of the last read.
    pub(crate) fn attempt(&self) -> u64 {
        let attempt = self.reader_did.iter().rev().find_map(|action| match action {
            reader::Action::Read { attempt, .. } => Some(*attempt),
            _ => None,
        });
        attempt.expect("a read was posted")
    }

    pub(crate) fn written_attempt(&self) -> u64 {
        let attempt = self.source_did.iter().rev().find_map(|action| match action {
            source::Action::Write { attempt, .. } => Some(*attempt),
            _ => None,
        });
        attempt.expect("a write was posted")
    }

    pub(crate) fn writes(&self) -> usize {
        self.source_did.iter().filter(|action| matches!(action, source::Action::Write { .. })).count()
    }

    pub(crate) fn end_read_part(&mut self, number: u128, attempt: u64, part: u8, landed: bool) {
        self.tell_reader(reader::Fact::PartEnded { id: id(number), attempt, part, landed });
    }

    pub(crate) fn end_write_part(&mut self, number: u128, attempt: u64, part: u8, landed: bool) {
        self.tell_source(source::Fact::PartEnded { id: id(number), attempt, part, landed });
    }

    /// How often the source has given blocks back.
    pub(crate) fn source_freed(&self) -> usize {
        let frees = self.source_did.iter().filter_map(|action| match action {
            source::Action::Free { blocks, .. } => Some(blocks),
            _ => None,
        });
        frees.inspect(|blocks| assert_eq!(**blocks, SOURCE_BLOCKS)).count()
    }

    /// How often the reader has given blocks back without having loaded them.
    pub(crate) fn reader_freed(&self) -> usize {
        let frees = self.reader_did.iter().filter_map(|action| match action {
            reader::Action::Free { blocks, .. } => Some(blocks),
            _ => None,
        });
        frees.inspect(|blocks| assert_eq!(**blocks, READER_BLOCKS)).count()
    }

    pub(crate) fn loaded(&self) -> usize {
        let loads = self.reader_did.iter().filter_map(|action| match action {
            reader::Action::Loaded { blocks, end_token, .. } => Some((blocks, *end_token)),
            _ => None,
        });
        loads.inspect(|(blocks, end)| assert_eq!((&blocks[..], *end), (&READER_BLOCKS[..], 8))).count()
    }

    pub(crate) fn failures(&self) -> Vec<Failure> {
        let failures = self.reader_did.iter().filter_map(|action| match action {
            reader::Action::Failed { failure, .. } => Some(*failure),
            _ => None,
        });
        failures.collect()
    }

    pub(crate) fn refused(&self) -> Vec<Failure> {
        let refused = self.reader_did.iter().filter_map(|action| match action {
            reader::Action::Refused { failure, .. } => Some(*failure),
            _ => None,
        });
        refused.collect()
    }

    pub(crate) fn reader_fence(&self) -> Option<(Peer, Session)> {
        self.reader_did.iter().rev().find_map(|action| match action {
            reader::Action::Fence { peer, session } => Some((*peer, *session)),
            _ => None,
        })
    }

    pub(crate) fn source_fence(&self) -> Option<(Peer, Session)> {
        self.source_did.iter().rev().find_map(|action| match action {
            source::Action::Fence { peer, session } => Some((*peer, *session)),
            _ => None,
        })
    }

    /// The transport has done what the reader asked for.
    pub(crate) fn fence_for_reader(&mut self) {
        let (peer, session) = self.reader_fence().expect("the reader asked for a fence");
        self.tell_reader(reader::Fact::Fenced { peer, session });
    }

    pub(crate) fn fence_for_source(&mut self) {
        let (peer, session) = self.source_fence().expect("the source asked for a fence");
        self.tell_source(source::Fact::Fenced { peer, session });
    }

    /// The connection's number, as in what was said last.
    pub(crate) fn say_to_source(&mut self, from: Peer, to: Peer, session: Session, message: Message) {
        self.tell_source(source::Fact::Message(Envelope { from, to, session, message }));
    }

    /// Whatever has to be forgotten is.
    pub(crate) fn is_over(&self) -> bool {
        self.source.transfers() == 0 && self.reader.transfers() == 0
    }
}
