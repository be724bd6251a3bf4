//! Unwinds a stack copy with the unwind tables of the binaries.
//!
//! Each step finds the rules for the function that contains an address (`.eh_frame`), and computes the caller's frame
//! and the return address from them. This method needs no frame pointers, which the C library and assembly code do not
//! maintain. At a function without rules the stack is truncated, because the caller could only be guessed.
//!
//! # Invariants
//!
//! * For any bytes in the copy, unwinding does not panic, makes at most [`FRAMES_MAX`] steps, and moves outwards in
//!   each step.

use gimli::{CfaRule, Register, RegisterRule, UnwindContext};

use crate::binaries::Binaries;
use crate::sample_buffer::{BELOW_STACK_BYTES, Registers, Sample};

/// The maximum number of frames in a stack, counted from the innermost frame.
pub(crate) const FRAMES_MAX: usize = 256;

#[cfg(target_arch = "aarch64")]
mod machine {
    use gimli::{AArch64, Register};

    pub(super) const STACK: Register = AArch64::SP;
    pub(super) const FRAME: Register = AArch64::X29;
    pub(super) const LINK: Option<Register> = Some(AArch64::X30);
    /// The bits of a code address. Higher bits may contain a pointer signature.
    pub(super) const ADDRESS_MASK: u64 = (1 << 48) - 1;
}

#[cfg(not(target_arch = "aarch64"))]
mod machine {
    use gimli::{Register, X86_64};

    pub(super) const STACK: Register = X86_64::RSP;
    pub(super) const FRAME: Register = X86_64::RBP;
    pub(super) const LINK: Option<Register> = None;
    pub(super) const ADDRESS_MASK: u64 = u64::MAX;
}

/// Unwinds one stack after another, reusing its memory.
#[derive(Debug, Default)]
pub(crate) struct Unwinder {
    context: UnwindContext<usize>,
}

/// A stack copy, and the address of its first byte in the original stack.
struct Copy<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl Copy<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }
}

impl Unwinder {
    /// Returns the addresses of a stack, innermost first. For each caller, the address lies within the call
    /// instruction.
    pub(crate) fn follow(&mut self, binaries: &Binaries, sample: &Sample<'_>) -> Vec<u64> {
        let start = sample.registers.stack.wrapping_sub(BELOW_STACK_BYTES);
        let copy = Copy { start, bytes: sample.stack };
        let mut registers = sample.registers;
        let mut frames = vec![registers.code];
        let mut at = registers.code;
        while frames.len() < FRAMES_MAX {
            let is_innermost = frames.len() == 1;
            let Some(caller) = self.step(binaries, &copy, registers, at, is_innermost) else {
                break;
            };
            if caller.code == 0 {
                break;
            }
            // The byte before the return address belongs to the call instruction, even if the call ends its function.
            at = caller.code - 1;
            frames.push(at);
            registers = caller;
        }
        frames
    }

    /// Returns the registers as they are after the function at this address has returned.
    fn step(
        &mut self,
        binaries: &Binaries,
        copy: &Copy<'_>,
        registers: Registers,
        at: u64,
        is_innermost: bool,
    ) -> Option<Registers> {
        let (row, returns_to) = binaries.frame_rules(at, &mut self.context)?;
        let value = |register: Register| match register {
            machine::STACK => Some(registers.stack),
            machine::FRAME => Some(registers.frame),
            other => (Some(other) == machine::LINK).then_some(registers.link),
        };
        let outer_end = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                value(*register)?.checked_add_signed(*offset)?
            }
            CfaRule::Expression(_) => return None,
        };
        // Each frame must lie further out than the previous frame. Only the innermost function may lack a frame of its
        // own.
        if outer_end < registers.stack || (outer_end == registers.stack && !is_innermost) {
            return None;
        }
        let saved = |offset: i64| copy.word(outer_end.checked_add_signed(offset)?);
        let code = match row.register(returns_to) {
            Some(RegisterRule::Offset(offset)) => saved(offset)?,
            None | Some(RegisterRule::SameValue) if is_innermost => value(returns_to)?,
            _ => return None,
        };
        let frame = match row.register(machine::FRAME) {
            None | Some(RegisterRule::SameValue) => registers.frame,
            Some(RegisterRule::Offset(offset)) => saved(offset)?,
            Some(_) => 0,
        };
        let code = code & machine::ADDRESS_MASK;
        Some(Registers { code, stack: outer_end, frame, link: 0 })
    }
}
