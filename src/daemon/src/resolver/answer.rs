//! One question and its answer.

use std::io;
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::sync::Semaphore;
use wire::launch::MAX_PERMITS;

use super::guest::Guest;
use super::{Settings, upstream};

/// Questions of everybody under way.
const QUESTIONS: usize = 512;
/// For how long an answer holds, in seconds: at least and at most.
const HOLDS: (u32, u32) = (60, 3600);
/// How much longer than its answer an address is permitted: whoever was told last connects last.
const BEYOND: u32 = 120;
/// Longest answer over UDP, RFC 9715; without EDNS, RFC 1035.
const UDP_MAX: u16 = 1232;

/// What answers are made with.
pub struct Answers {
    settings: Settings,
    questions: Semaphore,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The name is not on the sandbox's list.
    Name,
    /// Every address of the answer is in a range that is no internet.
    Address,
}

impl Answers {
    /// With these settings.
    pub fn new(settings: Settings) -> Self {
        Self { settings, questions: Semaphore::new(QUESTIONS) }
    }

    /// The answer to `bytes` of `guest`'s; none to what is no question, or one too many. At most `max` bytes, if there
    /// is a limit beside that of the question.
    pub async fn answer(&self, guest: &Guest, bytes: &[u8], udp: bool) -> Option<Vec<u8>> {
        let asked = Message::from_vec(bytes).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let (Ok(_own), Ok(_all)) = (guest.questions.try_acquire(), self.questions.try_acquire()) else { return None };
        let mut reply = self.reply(guest, &asked).await;
        reply.metadata.id = asked.metadata.id;
        reply.metadata.recursion_desired = asked.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.add_queries(asked.queries.iter().take(1).cloned());
        if asked.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_MAX);
            reply.set_edns(edns);
        }
        let bytes = reply.to_vec().ok()?;
        let most = if asked.edns.is_some() { asked.max_payload().clamp(512, UDP_MAX) } else { 512 };
        if udp && bytes.len() > usize::from(most) { reply.truncate().to_vec().ok() } else { Some(bytes) }
    }

    async fn reply(&self, guest: &Guest, asked: &Message) -> Message {
        if asked.metadata.op_code != OpCode::Query {
            return response(ResponseCode::NotImp);
        }
        let [question] = &asked.queries[..] else { return response(ResponseCode::FormErr) };
        if question.query_class != DNSClass::IN {
            return response(ResponseCode::Refused);
        }
        let name = question.name.to_lowercase().to_ascii();
        let name = name.trim_end_matches('.');
        if !guest.may_ask(name) {
            return self.refuse(guest, question, Refusal::Name);
        }
        match question.query_type {
            // Zones are not for sandboxes.
            RecordType::ANY | RecordType::AXFR | RecordType::IXFR => response(ResponseCode::Refused),
            // There is no IPv6 behind it, and the other two are hints of addresses that nobody has permitted.
            RecordType::AAAA | RecordType::HTTPS | RecordType::SVCB => response(ResponseCode::NoError),
            _ => match self.forward(guest, question, name).await {
                Ok(reply) => reply,
                Err(error) => {
                    tracing::debug!(session = %guest.id, name, %error, "no answer for a sandbox");
                    response(ResponseCode::ServFail)
                }
            },
        }
    }

    async fn forward(&self, guest: &Guest, question: &Query, name: &str) -> io::Result<Message> {
        let found = upstream::ask(&self.settings.upstreams, question).await?;
        let mut reply = response(found.metadata.response_code);
        let had = found.answers.iter().filter_map(address).count();
        let holds = |record: &Record| record.ttl.clamp(HOLDS.0, HOLDS.1);
        let kept = found.answers.into_iter().filter(|record| keeps(guest, record)).take(MAX_PERMITS);
        let mut answers: Vec<Record> = kept.collect();
        answers.iter_mut().for_each(|record| record.ttl = record.ttl.min(HOLDS.1));
        let addresses: Vec<Ipv4Addr> = answers.iter().filter_map(address).collect();
        if had > 0 && addresses.is_empty() {
            return Ok(self.refuse(guest, question, Refusal::Address));
        }
        let seconds = answers.iter().filter(|record| address(record).is_some()).map(holds).max().unwrap_or(HOLDS.0);
        self.permit(guest, name, &addresses, seconds).await?;
        reply.add_answers(answers);
        // Where there is no answer, how long there will be none.
        reply.add_authorities(
            found.authorities.into_iter().filter(|record| record.record_type() == RecordType::SOA).take(1),
        );
        Ok(reply)
    }

    async fn permit(&self, guest: &Guest, name: &str, addresses: &[Ipv4Addr], seconds: u32) -> io::Result<()> {
        let permits: Vec<_> = guest.permits(name, addresses, seconds);
        for some in permits.chunks(MAX_PERMITS) {
            let mut some = some.to_vec();
            some.iter_mut().for_each(|permit| permit.seconds += BEYOND);
            (self.settings.permitter)(guest.id.clone(), some.clone()).await.map_err(io::Error::other)?;
            guest.remember(&some, BEYOND);
        }
        Ok(())
    }

    fn refuse(&self, guest: &Guest, question: &Query, why: Refusal) -> Message {
        guest.count_refusal();
        if self.settings.log {
            let (name, kind) = (question.name.to_ascii(), question.query_type);
            tracing::info!(session = %guest.id, name, %kind, ?why, "refused to resolve");
        }
        response(ResponseCode::Refused)
    }
}

fn response(code: ResponseCode) -> Message {
    let mut message = Message::response(0, OpCode::Query);
    message.metadata.response_code = code;
    message
}

fn address(record: &Record) -> Option<Ipv4Addr> {
    match &record.data {
        RData::A(A(address)) => Some(*address),
        _ => None,
    }
}

/// Whether a sandbox is told: everything but addresses that it may not reach, or could not.
fn keeps(guest: &Guest, record: &Record) -> bool {
    match &record.data {
        RData::A(A(address)) => guest.may_learn(*address),
        RData::AAAA(_) => false,
        _ => true,
    }
}
