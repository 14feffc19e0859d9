// SPDX-License-Identifier: Apache-2.0

package loader

import "fmt"

// Outcome is what a pass of adoption made of a connection.
type Outcome uint8

// Outcomes. The zero value is none.
const (
	Managed  = Outcome(adoptShAdoptOutcomeSH_ADOPT_MANAGED)  // has had a record, which the policy still agrees with
	Adopted  = Outcome(adoptShAdoptOutcomeSH_ADOPT_ADOPTED)  // has a record now
	Changed  = Outcome(adoptShAdoptOutcomeSH_ADOPT_CHANGED)  // the policy wants something else of it, or another policy names it
	Drifted  = Outcome(adoptShAdoptOutcomeSH_ADOPT_DRIFTED)  // its options were changed without the programs
	Released = Outcome(adoptShAdoptOutcomeSH_ADOPT_RELEASED) // no policy names it any more; it has what its application asked for
	Refused  = Outcome(adoptShAdoptOutcomeSH_ADOPT_REFUSED)  // a policy names it, and it is not ours to touch

	outcomeListener = Outcome(adoptShAdoptOutcomeSH_ADOPT_LISTENER) // no connection
	outcomes        = int(outcomeListener)
)

var outcomeNames = [...]string{
	Managed: "managed", Adopted: "adopted", Changed: "changed", Drifted: "drifted", Released: "released", Refused: "refused",
}

// String returns the outcome as metrics and log spell it.
func (o Outcome) String() string { return nameOf(outcomeNames[:], uint8(o), "outcome") }

// Refusal is why a connection that a policy names is not ours to touch.
type Refusal uint8

// Refusals. The zero value is none.
const (
	RefusalMPTCP   = Refusal(adoptShRefusalSH_REFUSE_MPTCP)
	RefusalMD5OrAO = Refusal(adoptShRefusalSH_REFUSE_MD5OR_AO)
	RefusalRepair  = Refusal(adoptShRefusalSH_REFUSE_REPAIR)
	RefusalKernel  = Refusal(adoptShRefusalSH_REFUSE_KERNEL) // the kernel uses it itself (NFS, nvme-tcp)
	RefusalOrphan  = Refusal(adoptShRefusalSH_REFUSE_ORPHAN) // no process has it open any more
	RefusalError   = Refusal(adoptShRefusalSH_REFUSE_ERROR)  // no memory for its record
)

var refusalNames = [...]string{
	0: "none", RefusalMPTCP: "mptcp", RefusalMD5OrAO: "md5_or_ao", RefusalRepair: "repair",
	RefusalKernel: "kernel", RefusalOrphan: "orphan", RefusalError: "error",
}

// String returns the refusal as metrics and log spell it.
func (r Refusal) String() string { return nameOf(refusalNames[:], uint8(r), "refusal") }

// Wait is what a pending connection waits for.
type Wait uint8

// Waits. The zero value is none.
const (
	WaitNone   = Wait(adoptShWaitSH_WAIT_NONE)
	WaitBudget = Wait(adoptShWaitSH_WAIT_BUDGET) // a keepalive may be set off
	WaitPacket = Wait(adoptShWaitSH_WAIT_PACKET) // a packet from the peer that is younger than the idle time
	WaitStuck  = Wait(adoptShWaitSH_WAIT_STUCK)  // an answer to what was sent: the peer may be dead
	WaitWindow = Wait(adoptShWaitSH_WAIT_WINDOW) // the peer takes more
	WaitProber = Wait(adoptShWaitSH_WAIT_PROBER) // the end of a judgement
	WaitError  = Wait(adoptShWaitSH_WAIT_ERROR)  // nothing: the kernel refused an option

	waits = int(WaitError) + 1
)

var waitNames = [...]string{
	WaitNone: "none", WaitBudget: "budget", WaitPacket: "packet", WaitStuck: "stuck",
	WaitWindow: "window", WaitProber: "prober", WaitError: "error",
}

// Waits lists them, without WaitNone.
func Waits() []Wait {
	return []Wait{WaitBudget, WaitPacket, WaitStuck, WaitWindow, WaitProber, WaitError}
}

// String returns the wait as metrics and log spell it.
func (w Wait) String() string { return nameOf(waitNames[:], uint8(w), "wait") }

func nameOf(names []string, i uint8, kind string) string {
	if int(i) < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("%s_%d", kind, i)
}
