//! What people who run prefill and decode apart have reported, one test a report, named after its kind.
//!
//! The table of reports, with those that are not this protocol's, is in `docs/transfer-protocol.md`.

mod pair;

use pair::{Pair, READER, SECOND, SOURCE, id, peer};
use serq_transfer::protocol::reader::{self, Mode};
use serq_transfer::protocol::source::{self, Action};
use serq_transfer::protocol::{
    BlockTable, Config, End, Failure, Incarnation, Message, Otherwise, Policy, Refusal, Session,
};

/// vllm#46283: a push is aborted while it is waited for, and its completion never comes. The blocks stay the
/// transfer's until its deadline, then the peer is fenced, and only then they are free.
#[test]
fn leak_on_a_lost_notice() {
    let mut t = Pair::new();
    let attempt = t.writing(1);
    t.tell_reader(reader::Fact::Cancelled { id: id(1) });
    t.pass_without_network(39);
    assert_eq!((t.reader_freed(), t.reader_fence()), (0, None));
    t.pass_without_network(2);
    assert_eq!(t.reader_freed(), 0, "a fence that was asked for is not one that is there");
    t.fence_for_reader();
    assert_eq!(t.reader_freed(), 1);
    // The late notice is nobody's.
    t.end_write_part(1, attempt, 0, true);
    t.deliver();
    assert_eq!((t.loaded(), t.reader_freed()), (0, 1));
}

/// vllm#41269: the decode leg is refused at the door, and no transfer is ever opened.
#[test]
fn leak_on_rejection() {
    let mut t = Pair::new();
    t.expect(1);
    t.finish(1);
    t.tell_source(source::Fact::Abandoned { id: id(1) });
    assert_eq!(t.source_freed(), 1);
    assert!(t.is_over());
}

/// vllm#25067: the client of the prefill leg leaves when the blocks are leased, and the completion finds an id that
/// is gone. The lease is not ended by it, and what is told of an unknown id is counted.
#[test]
fn race_of_abort_and_finish() {
    let mut t = Pair::new();
    let attempt = t.reading(1);
    t.tell_source(source::Fact::Aborted { id: id(1) });
    assert_eq!(t.source_freed(), 0);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, true);
    }
    t.deliver();
    assert_eq!((t.loaded(), t.source_freed()), (1, 1));
    let before = t.source.counters().late;
    t.tell_source(source::Fact::Aborted { id: id(1) });
    t.tell_source(source::Fact::PartEnded { id: id(99), attempt: 1, part: 0, landed: true });
    assert_eq!((t.source.counters().late, t.source_freed()), (before + 2, 1));
}

/// vllm#26012: an abort during the prefill leaves nothing behind, and its end that comes anyway gives the blocks back.
#[test]
fn bookkeeping_leak_after_an_abort() {
    let mut t = Pair::new();
    t.expect(1);
    t.tell_source(source::Fact::Aborted { id: id(1) });
    assert!(t.is_over());
    t.finish(1);
    assert_eq!(t.source_freed(), 1);
    t.pass(121);
    assert_eq!((t.source.transfers(), t.source.tombstones()), (0, 0));
}

/// vllm#18485: an abort before anything was scheduled, or of what was never known.
#[test]
fn abort_before_it_was_scheduled() {
    let mut t = Pair::new();
    t.tell_source(source::Fact::Aborted { id: id(1) });
    t.tell_source(source::Fact::PrefillFailed { id: id(1) });
    t.tell_reader(reader::Fact::Cancelled { id: id(1) });
    t.queue(2, Mode::Pull, true, None);
    t.tell_reader(reader::Fact::Cancelled { id: id(2) });
    assert!(t.is_over());
    assert_eq!((t.source_did.len(), t.reader_did.len()), (0, 0));
    t.reserve(2);
    assert_eq!(t.reader_freed(), 1);
}

/// aws-do-eks#84: a lease that ends before the read does. The copy is a failed load and is never used.
#[test]
fn lease_shorter_than_the_queue() {
    let mut t = Pair::new();
    let attempt = t.reading(1);
    t.end_read_part(1, attempt, 0, true);
    t.pass_without_network(31);
    assert_eq!(t.source_freed(), 1);
    t.end_read_part(1, attempt, 1, true);
    t.deliver();
    assert_eq!(t.failures(), [Failure::Ended(End::LeaseOver)]);
    assert_eq!((t.loaded(), t.reader_freed()), (0, 1));
}

/// vllm#53095: heartbeats name transfers by the one id, so that they keep them, and one that names what is not leased
/// is counted and answered.
#[test]
fn heartbeats_with_another_id() {
    let mut t = Pair::new();
    t.connect();
    t.expect(1);
    t.finish(1);
    let offer = t.offer();
    t.queue(1, Mode::Pull, false, Some(offer.clone()));
    t.queue(2, Mode::Pull, false, Some(offer));
    t.pass(200);
    assert_eq!(t.source_freed(), 0, "a request that waits for blocks keeps its lease");
    assert_eq!(t.source.counters().unmatched, 1);
    assert_eq!(t.failures(), [Failure::Unknown], "and the other one learned early");
}

/// vllm#38027: a decoder that dies keeps its prompt's blocks for a lease, not for minutes.
#[test]
fn stranded_by_a_dead_decoder() {
    let mut t = Pair::new();
    t.reading(1);
    t.pass(50);
    assert_eq!(t.source_freed(), 0);
    t.pass_without_network(20);
    assert_eq!(t.source_freed(), 1);
}

/// vllm#44100: what is pinned for a reader is a lease: nobody unlocks it, it ends.
#[test]
fn remote_lock_leak() {
    let mut t = Pair::new();
    t.connect();
    t.expect(1);
    t.queue(1, Mode::Pull, true, None);
    t.reserve(1);
    t.deliver();
    t.tell_reader(reader::Fact::Cancelled { id: id(1) });
    t.to_source.clear();
    t.finish(1);
    t.pass_without_network(31);
    assert!(t.is_over());
    assert_eq!((t.source_freed(), t.reader_freed()), (1, 1));
}

/// sglang#9817: an abort in every state gives every block back, on both sides, once.
#[test]
fn abort_in_every_state() {
    for mode in [Mode::Pull, Mode::Push] {
        for last in 0..8 {
            for preempted_leg_hears in [true, false] {
                let mut t = Pair::new();
                let steps: [&dyn Fn(&mut Pair); 8] = [
                    &|t| t.expect(1),
                    &|t| t.queue(1, mode, true, None),
                    &|t| t.reserve(1),
                    &|t| t.deliver(),
                    &|t| t.finish(1),
                    &|t| t.deliver(),
                    &|t| match mode {
                        Mode::Pull => t.end_read_part(1, 1, 0, true),
                        Mode::Push => t.end_write_part(1, 1, 0, true),
                    },
                    &|t| match mode {
                        Mode::Pull => t.end_read_part(1, 1, 1, true),
                        Mode::Push => t.end_write_part(1, 1, 1, true),
                    },
                ];
                for step in &steps[..=last] {
                    step(&mut t);
                }
                t.tell_reader(reader::Fact::Cancelled { id: id(1) });
                if preempted_leg_hears {
                    t.deliver();
                } else {
                    t.to_source.clear();
                }
                // The transport ends what was posted.
                for part in 0..2 {
                    t.end_read_part(1, 1, part, true);
                    t.end_write_part(1, 1, part, true);
                }
                t.pass(150);
                if last < 4 {
                    t.tell_source(source::Fact::Aborted { id: id(1) });
                }
                assert!(t.is_over(), "{mode:?} aborted after step {last}");
                assert_eq!(t.source_freed(), usize::from(last >= 4), "{mode:?} aborted after step {last}");
                assert_eq!(t.reader_freed() + t.loaded(), usize::from(last >= 2), "{mode:?} aborted after step {last}");
            }
        }
    }
}

/// sglang#9266: after many aborts as many transfers are accepted as before any.
#[test]
fn capacity_after_many_aborts() {
    let config = Config { transfers_max: 8, tombstones_max: 4, ..Config::default() };
    let mut t = Pair::with(config);
    t.connect();
    for round in 0..50 {
        for number in 0..8 {
            t.expect(round * 8 + number);
            t.queue(round * 8 + number, Mode::Pull, true, None);
        }
        for number in 0..8 {
            t.tell_source(source::Fact::Aborted { id: id(round * 8 + number) });
            t.tell_reader(reader::Fact::Cancelled { id: id(round * 8 + number) });
        }
        t.deliver();
    }
    assert_eq!(t.refused(), []);
    assert!(!t.source_did.iter().any(|action| matches!(action, Action::Refused { .. })));
    assert!(t.is_over() && t.source.tombstones() <= 4 && t.reader.tombstones() <= 4);
    for number in 1000..1009 {
        t.expect(number);
    }
    assert!(t.source_did.contains(&Action::Refused { id: id(1008) }), "the ninth is one too many");
}

/// sglang#30233: the prefill is refused, and the decoder that waits is told.
#[test]
fn failed_prefill_is_told() {
    for mode in [Mode::Pull, Mode::Push] {
        let mut t = Pair::new();
        t.expect(1);
        t.queue(1, mode, true, None);
        t.reserve(1);
        t.deliver();
        t.tell_source(source::Fact::PrefillFailed { id: id(1) });
        // The notice is lost; the question that is asked again finds out.
        t.to_reader.clear();
        t.pass(2);
        assert_eq!(t.failures(), [Failure::Ended(End::PrefillFailed)]);
        assert_eq!(t.reader_freed(), 1);
        assert!(t.is_over());
    }
}

/// vllm#50754: a write that cannot be posted is a failure that is told, and the policy is applied.
#[test]
fn lost_failure_of_a_write() {
    let mut t = Pair::new();
    t.policy = Policy { retries: 1, otherwise: Otherwise::Error };
    let attempt = t.writing(1);
    t.end_write_part(1, attempt, 0, true);
    t.end_write_part(1, attempt, 1, false);
    t.deliver();
    let second = t.written_attempt();
    assert_ne!(second, attempt, "once more, as the policy says");
    t.end_write_part(1, second, 0, false);
    t.deliver();
    assert_eq!(t.failures(), [Failure::WriteFailed]);
    assert_eq!((t.reader_freed(), t.source_freed()), (1, 1));
    assert!(t.is_over());
}

/// vllm#48633-C3: the reader has a prefix cached and lists fewer blocks than the source. Offsets join the lists.
#[test]
fn push_after_a_partial_hit() {
    let mut t = Pair::new();
    t.connect();
    t.expect(1);
    t.finish(1);
    t.queue(1, Mode::Push, false, None);
    t.tell_reader(reader::Fact::Reserved { id: id(1), table: BlockTable::in_order(4, 4, 8, &[21]) });
    t.deliver();
    let runs = t.source_did.iter().find_map(|action| match action {
        Action::Write { runs, .. } => Some(runs.clone()),
        _ => None,
    });
    let run = runs.expect("a write was posted")[0];
    assert_eq!((run.source_block, run.target_block, run.source_slot, run.target_slot, run.tokens), (11, 21, 0, 0, 4));
}

/// vllm#55470: the decoder aborts after it registered. No part is posted after the revocation came, and the blocks are
/// given back after the part in flight has landed.
#[test]
fn write_after_revoke() {
    let mut t = Pair::new();
    let attempt = t.writing(1);
    t.tell_reader(reader::Fact::Cancelled { id: id(1) });
    t.deliver();
    assert_eq!((t.writes(), t.reader_freed()), (1, 0), "the first part is in flight");
    t.end_write_part(1, attempt, 0, true);
    t.deliver();
    assert_eq!((t.writes(), t.reader_freed(), t.source_freed()), (1, 1, 1));
}

/// The same, where the revocation overtakes its registration and the source's scheduler is told last of all.
#[test]
fn write_after_a_revoke_that_came_first() {
    let mut t = Pair::new();
    t.connect();
    t.queue(1, Mode::Push, true, None);
    t.reserve(1);
    let registration = t.to_source.pop().expect("it registers");
    assert!(matches!(registration.message, Message::Register { .. }));
    t.tell_reader(reader::Fact::Cancelled { id: id(1) });
    t.deliver();
    assert_eq!(t.reader_freed(), 1);
    t.expect(1);
    t.tell_source(source::Fact::Message(registration));
    t.finish(1);
    t.deliver();
    assert_eq!(t.writes(), 0);
}

/// What is said of a registration that failed is said again, late, after the next one was revoked. It acknowledges nothing.
#[test]
fn acknowledgement_of_an_earlier_registration() {
    let mut t = Pair::new();
    t.policy = Policy { retries: 1, otherwise: Otherwise::Error };
    let attempt = t.writing(1);
    t.end_write_part(1, attempt, 0, false);
    let failed = t.to_reader[0].clone();
    assert!(matches!(failed.message, Message::WriteFailed { .. }));
    t.deliver();
    let second = t.written_attempt();
    assert_ne!(second, attempt);
    t.tell_reader(reader::Fact::Cancelled { id: id(1) });
    t.tell_reader(reader::Fact::Message(failed));
    t.deliver();
    assert_eq!(t.reader_freed(), 0, "the second write is in flight");
    t.end_write_part(1, second, 0, true);
    t.deliver();
    assert_eq!((t.reader_freed(), t.source_freed()), (1, 1));
}

/// TensorRT-LLM#17665: the notice that the data has come is lost. It is asked for again.
#[test]
fn lost_completion_notice() {
    let mut t = Pair::new();
    let attempt = t.writing(1);
    for part in 0..2 {
        t.end_write_part(1, attempt, part, true);
    }
    t.to_reader.clear();
    assert_eq!((t.loaded(), t.source_freed()), (0, 1));
    t.pass(2);
    assert_eq!(t.loaded(), 1);
    assert_eq!(t.failures(), []);

    let mut t = Pair::new();
    let attempt = t.reading(1);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, true);
    }
    let questions = std::mem::take(&mut t.to_source);
    questions.into_iter().for_each(|question| t.tell_source(source::Fact::Message(question)));
    t.to_reader.clear();
    t.pass(2);
    assert_eq!((t.loaded(), t.source_freed()), (1, 1));
}

/// One part's notice that comes twice is no second part.
#[test]
fn completion_notice_that_comes_twice() {
    let mut t = Pair::new();
    let attempt = t.writing(1);
    t.end_write_part(1, attempt, 0, true);
    let notice = t.to_reader[0].clone();
    t.to_reader.push(notice);
    t.deliver();
    assert_eq!(t.loaded(), 0);
    t.end_write_part(1, attempt, 0, true);
    t.end_write_part(1, attempt, 1, true);
    t.deliver();
    assert_eq!(t.loaded(), 1);
}

/// sglang#6857, vllm#53250: a request that was preempted after its load does not wait for it again.
#[test]
fn preempted_after_a_consumed_load() {
    let mut t = Pair::new();
    let attempt = t.reading(1);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, true);
    }
    t.deliver();
    let offer = t.offer();
    t.queue(1, Mode::Pull, false, Some(offer));
    assert_eq!(t.refused(), [Failure::Spent]);
    t.reserve(1);
    assert_eq!(t.reader_freed(), 1, "blocks for it come straight back");
    assert!(t.is_over());
}

/// LMCache#1030: what does not fit is refused by itself; nothing waits for room without an end.
#[test]
fn one_too_many_fails_alone() {
    let mut t = Pair::with(Config { transfers_max: 1, ..Config::default() });
    let attempt = t.reading(1);
    t.queue(2, Mode::Pull, true, None);
    assert_eq!(t.refused(), [Failure::TooMany]);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, true);
    }
    t.deliver();
    assert_eq!(t.loaded(), 1);
}

/// vllm#49250, B23: a load that fails at any part gives all blocks back and says so once; nothing of it is used.
#[test]
fn failure_at_every_part() {
    for failing in 0..2 {
        for otherwise in [Otherwise::Recompute, Otherwise::Error] {
            let mut t = Pair::new();
            t.policy = Policy { retries: 0, otherwise };
            let attempt = t.reading(1);
            for part in 0..2 {
                t.end_read_part(1, attempt, part, part != failing);
            }
            t.deliver();
            let failed = reader::Action::Failed { id: id(1), failure: Failure::ReadFailed, otherwise };
            assert!(t.reader_did.contains(&failed));
            assert_eq!((t.loaded(), t.reader_freed(), t.source_freed()), (0, 1, 1));
        }
    }
}

/// vllm#30358: the list that counts is the offer's; one that does not cover what the reader wants is refused.
#[test]
fn block_lists_that_do_not_fit() {
    for mode in [Mode::Pull, Mode::Push] {
        let mut t = Pair::new();
        t.connect();
        t.expect(1);
        t.finish(1);
        t.queue(1, mode, false, None);
        let table = BlockTable::in_order(4, 0, 10, &[20, 21, 22]);
        t.tell_reader(reader::Fact::Reserved { id: id(1), table });
        t.deliver();
        assert_eq!(t.failures(), [Failure::Ended(End::Unmappable)]);
        assert_eq!(t.source_freed(), 1);
        assert!(t.is_over());
    }
}

/// smg#2382: a decoder is replaced on the same address. It connects, its predecessor's transfers are over, and what
/// the predecessor still says is answered and changes nothing.
#[test]
fn reader_replaced_at_its_address() {
    let mut t = Pair::new();
    t.writing(1);
    let before = peer(READER, 1);
    t.restart_reader(2);
    t.reader_did.clear();
    t.connect();
    let (fenced, session) = t.source_fence().expect("what is in flight to the dead is fenced");
    assert_eq!((fenced, t.source_freed()), (before, 0));
    t.fence_for_source();
    assert_eq!(t.source_freed(), 1);
    t.say_to_source(before, peer(SOURCE, 1), session, Message::Ask { id: id(1) });
    let answer = t.to_reader.pop().expect("it is answered");
    assert_eq!((answer.to, answer.message), (before, Message::Reset));
    t.expect(2);
    t.finish(2);
    let offer = t.offer();
    t.queue(2, Mode::Pull, false, Some(offer));
    t.reserve(2);
    let attempt = t.attempt();
    for part in 0..2 {
        t.end_read_part(2, attempt, part, true);
    }
    t.deliver();
    assert_eq!((t.loaded(), t.source_freed()), (1, 2));
}

/// smg#2382: a prefiller is replaced on the same address. What was in flight fails by type, and the next request is
/// served without anybody's help.
#[test]
fn source_replaced_at_its_address() {
    let mut t = Pair::new();
    let attempt = t.reading(1);
    t.restart_source(2);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, false);
    }
    // What it says to the dead is answered by the living.
    t.deliver();
    assert_eq!(t.failures(), [Failure::ReadFailed]);
    t.fence_for_reader();
    t.reader_did.clear();
    t.source_did.clear();
    t.expect(2);
    t.finish(2);
    let offer = t.offer();
    assert_eq!(offer.source, peer(SOURCE, 2));
    t.queue(2, Mode::Pull, false, Some(offer));
    t.reserve(2);
    t.deliver();
    let attempt = t.attempt();
    for part in 0..2 {
        t.end_read_part(2, attempt, part, true);
    }
    t.deliver();
    assert_eq!((t.loaded(), t.failures()), (1, vec![]));
}

/// The same, where nobody has noticed when the offer of the new one comes: the old connection is found out, fenced and
/// replaced, and the load goes on.
#[test]
fn source_replaced_and_first_noticed_by_its_offer() {
    for mode in [Mode::Pull, Mode::Push] {
        let mut t = Pair::new();
        t.connect();
        t.restart_source(2);
        t.expect(1);
        t.finish(1);
        let offer = t.offer();
        t.queue(1, mode, false, Some(offer));
        t.reserve(1);
        t.deliver();
        t.fence_for_reader();
        t.deliver();
        for part in 0..2 {
            match mode {
                Mode::Pull => t.end_read_part(1, t.attempt(), part, true),
                Mode::Push => t.end_write_part(1, t.written_attempt(), part, true),
            }
        }
        t.deliver();
        assert_eq!((t.loaded(), t.failures(), t.source_freed()), (1, vec![], 1));
    }
}

/// A decode leg that was dispatched once more, with the offer of the first time, after the first decoder had used it. What
/// it reads was given back; that the first read was good says nothing about the second.
#[test]
fn offer_that_was_used_before() {
    let mut t = Pair::new();
    let attempt = t.reading(1);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, true);
    }
    t.deliver();
    assert_eq!((t.loaded(), t.source_freed()), (1, 1));
    t.restart_reader(2);
    t.connect();
    let offer = t.offer();
    t.queue(1, Mode::Pull, false, Some(offer));
    t.reserve(1);
    let second = t.attempt();
    assert_eq!(second, attempt, "numbers of another incarnation may be the same");
    for part in 0..2 {
        t.end_read_part(1, second, part, true);
    }
    t.deliver();
    assert_eq!(t.failures(), [Failure::Ended(End::LeaseOver)]);
    assert_eq!(t.loaded(), 1);
}

/// The same for a push: what was written to one decoder was not written to the next.
#[test]
fn push_that_went_to_another_decoder() {
    let mut t = Pair::new();
    let attempt = t.writing(1);
    for part in 0..2 {
        t.end_write_part(1, attempt, part, true);
    }
    t.deliver();
    assert_eq!((t.loaded(), t.source_freed()), (1, 1));
    t.restart_reader(2);
    t.connect();
    t.queue(1, Mode::Push, false, None);
    t.reserve(1);
    t.deliver();
    assert_eq!((t.loaded(), t.failures()), (1, vec![Failure::Ended(End::LeaseOver)]));
    assert_eq!(t.reader_freed(), 1);
}

/// An answer of a dead incarnation, or to one, drops nothing of the living.
#[test]
fn somebody_else_drops_nothing_of_the_living() {
    let mut t = Pair::new();
    t.reading(1);
    let session = Session(1);
    t.say_to_source(peer(READER, 1), peer(SOURCE, 9), session, Message::Drop { id: id(1) });
    let answer = t.to_reader.pop().expect("it is answered");
    assert_eq!(answer.message, Message::SomebodyElse { meant: Incarnation(9) });
    t.tell_reader(reader::Fact::Message(answer));
    assert_eq!((t.reader_fence(), t.source_freed()), (None, 0));
    let lie = Message::SomebodyElse { meant: Incarnation(1) };
    t.say_to_source(peer(READER, 1), peer(SOURCE, 1), session, lie);
    assert_eq!(t.source.transfers(), 1);
}

/// sglang#28737: a source that was discovered is greeted before the first request, which then reads at once.
#[test]
fn cold_start_of_a_pair() {
    let mut t = Pair::new();
    t.connect();
    let before = t.reader_did.len();
    t.expect(1);
    t.finish(1);
    let offer = t.offer();
    t.queue(1, Mode::Pull, false, Some(offer));
    t.reserve(1);
    let posted = &t.reader_did[before..];
    assert!(posted.iter().all(|action| matches!(action, reader::Action::Read { .. })) && posted.len() == 2);
}

/// sglang#39428: who can reach a source cannot make it keep anything.
#[test]
fn state_for_unknown_requests() {
    let mut t = Pair::with(Config { peers_max: 3, ..Config::default() });
    t.connect();
    let table = BlockTable::in_order(4, 0, 8, &[1, 2]);
    for number in 0..1000 {
        let epoch = serq_transfer::protocol::Epoch(u64::MAX);
        for message in [
            Message::Register { id: id(number), epoch, target: table.clone() },
            Message::Ask { id: id(number) },
            Message::Revoke { id: id(number), epoch: serq_transfer::protocol::Epoch(1) },
            Message::Heartbeat { ids: vec![id(number)] },
        ] {
            t.say_to_source(peer(READER, 1), peer(SOURCE, 1), Session(1), message);
        }
    }
    for number in 0..1000 {
        let from = peer(serq_transfer::protocol::Address(1000 + number), 1);
        let hello = Message::Hello { version: 1, compatibility: b"same".to_vec() };
        t.say_to_source(from, peer(SOURCE, 0), Session(1), hello);
    }
    assert_eq!((t.source.transfers(), t.source.tombstones()), (0, 0));
    assert_eq!(t.source.counters().unknown, 4000);
    t.source.check(t.now);
}

/// vllm#43523: a pair that cannot be joined is refused with a sentence, and its requests fail by type.
#[test]
fn incompatible_pair_is_refused() {
    let mut t = Pair::new();
    t.source = source::Source::new(peer(SOURCE, 1), b"other".to_vec(), Vec::new(), t.config.clone());
    t.queue(1, Mode::Pull, true, None);
    t.reserve(1);
    t.deliver();
    let failure = Failure::Refused(Refusal::Compatibility);
    assert_eq!(t.failures(), [failure]);
    assert!(failure.to_string().contains("compatibility hash"));
    assert_eq!(t.reader_freed(), 1);
}

/// vllm#38935: a pair whose bytes arrive changed is found by the canary, before a request.
#[test]
fn canary_that_arrives_changed() {
    let mut t = Pair::new();
    t.queue(1, Mode::Pull, true, None);
    let hello = t.to_source.remove(0);
    t.tell_source(source::Fact::Message(hello));
    let welcome = t.to_reader.remove(0);
    let mut actions = Vec::new();
    t.reader.handle(t.now, reader::Fact::Message(welcome), &mut actions);
    let Some(reader::Action::ReadCanary { session, .. }) = actions.first() else { panic!("{actions:?}") };
    let canary = reader::Canary::Wrong;
    t.tell_reader(reader::Fact::CanaryRead { source: SOURCE, session: *session, canary });
    assert_eq!(t.failures(), [Failure::CanaryWrong]);
    assert!(!t.reader.is_connected(SOURCE));
}

/// A stopped peer: a read that neither ends nor fails. It ends at its deadline, by a fence.
#[test]
fn read_of_a_stopped_peer() {
    let mut t = Pair::new();
    t.reading(1);
    t.pass(59);
    assert_eq!(t.failures(), []);
    t.pass(2);
    assert_eq!((t.failures(), t.reader_freed()), (vec![Failure::ReadStuck], 0));
    t.fence_for_reader();
    assert_eq!(t.reader_freed(), 1);
}

/// A stopped reader: a write that neither ends nor fails. The source's blocks are free after the fence, not before.
#[test]
fn write_to_a_stopped_peer() {
    let mut t = Pair::new();
    t.writing(1);
    t.pass_without_network(61);
    assert_eq!(t.source_freed(), 0);
    t.fence_for_source();
    assert_eq!(t.source_freed(), 0, "leased again, for a reader that may come back");
    t.pass_without_network(21);
    assert_eq!(t.source_freed(), 1);
}

/// The source's word that a read was good is asked for with an end.
#[test]
fn word_that_never_comes() {
    let mut t = Pair::new();
    let attempt = t.reading(1);
    for part in 0..2 {
        t.end_read_part(1, attempt, part, true);
    }
    t.pass_without_network(11);
    assert_eq!(t.failures(), [Failure::Unconfirmed]);
    assert_eq!((t.loaded(), t.reader_freed()), (0, 1));
}

/// A second long wait, on a clock that starts anywhere: no deadline of one side is a number of the other's clock.
#[test]
fn clocks_are_not_compared() {
    let mut t = Pair::new();
    t.connect();
    t.expect(1);
    t.finish(1);
    let offer = t.offer();
    let reader_clock = t.now;
    // The source's clock is a year ahead; its lease is judged by it alone.
    t.now = t.now.after(365 * 86_400 * SECOND);
    t.expect(2);
    t.finish(2);
    assert_eq!(t.source_freed(), 1, "the first lease is over on the clock it was given on");
    let source_clock = t.now;
    let second = t.offer();
    t.now = reader_clock;
    t.queue(1, Mode::Pull, false, Some(offer));
    t.queue(2, Mode::Pull, false, Some(second));
    t.reserve(2);
    let attempt = t.attempt();
    for part in 0..2 {
        t.end_read_part(2, attempt, part, true);
    }
    t.now = source_clock;
    let questions = std::mem::take(&mut t.to_source);
    questions.into_iter().for_each(|question| t.tell_source(source::Fact::Message(question)));
    t.now = reader_clock;
    t.deliver_to_reader();
    assert_eq!(t.loaded(), 1);
}
