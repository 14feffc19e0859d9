// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

const (
	alive       = "alive"
	aliveSlow   = "alive_slow"
	localUnread = "local_unread"
)

// liveOnes are connections that are well, and whose peer takes its time.
func liveOnes() []scenario {
	return []scenario{
		{name: "slow answer", want: "alive_slow: kept", entry: anyOf, lives: true, play: slowAnswer},
		{name: "answered at last", want: "alive: kept", entry: anyOf, lives: true, play: answered},
		{name: "answered during the probe", want: "alive, local_unread: kept", entry: anyOf, lives: true, play: answeredMeanwhile},
		{name: "answer not read", want: "local_unread: kept", entry: anyOf, lives: true, play: unread},
		{name: "stopped process, not asked", want: "alive_slow: kept", entry: anyOf, lives: true, play: stopped},
		{name: "upload under way", want: "alive_slow: kept", entry: anyOf, lives: true, play: uploads},
		{name: "upload, every probe lost", want: "alive_slow: kept", entry: anyOf, lives: true, play: uploadsUnasked},
		{name: "upload that dies", want: "dead_path: closed", entry: anyOf, play: uploadDies},
	}
}

func slowAnswer(p *play) {
	p.works()
	p.rest(0, 1200*time.Millisecond)
	if p.IntN(2) == 0 {
		p.call()
	} else {
		p.delivered()
	}
	p.timeout()
	p.report()
	p.kept(aliveSlow)
}

// answered: the answer came after the application had given up, before its report.
func answered(p *play) {
	p.works()
	p.delivered()
	p.timeout()
	p.replies()
	p.near.heard(p, p.far.said)
	p.report()
	p.kept(p.either(alive, aliveSlow)...)
}

// answeredMeanwhile: every question is lost, and the answer comes within the window. On a
// machine that is late it may come when the connection is closed already.
func answeredMeanwhile(p *play) {
	p.works()
	p.delivered()
	bare := p.there()
	bare.MaxLen = 100
	fault := p.drop(bare)
	p.timeout()
	probe := p.probes[p.entry]
	window, spacing := probe.Schedule(0)
	p.ask()
	p.rest(0, window/2)
	p.says(p.far, 500)
	said := conn.Now()
	p.told()
	p.heal(fault)
	if p.out.given == deadPath {
		const way = 20 * time.Millisecond // to this node, and from the close to the application
		p.ended()
		_, at := p.near.ended()
		if first := p.asked + time.Duration(probe.Attempts-1)*spacing; at < first || said <= at-way {
			p.fail("answered %s after the report, and closed %s after it", said-p.asked, at-p.asked)
		}
		p.out.lives = false
		p.closed(0, deadPath)
		return
	}
	p.kept(alive, localUnread) // it may be on its way to the application
}

// unread: the answer waits in this host for an application that does not read.
func unread(p *play) {
	p.open()
	p.far.listen(64<<10, 0)
	p.delivered()
	p.rest(20*time.Millisecond, time.Second)
	p.replies()
	labtest.Eventually(p, late, func() bool {
		n := 0
		labtest.Control(p, p.near, func(fd int) (err error) {
			n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
			return err
		})
		return n == p.far.said
	}, "the answer to be in the receive queue")
	p.timeout()
	p.report()
	p.near.listen(64<<10, 0)
	p.kept(p.either(localUnread, aliveSlow)...)
}

// stopped: its kernel acknowledges, and the process does nothing. Nobody asks it.
func stopped(p *play) {
	signal := p.process()
	signal(unix.SIGSTOP)
	p.call()
	p.timeout()
	p.report()
	p.want("none", aliveSlow)
	signal(unix.SIGCONT)
	p.near.heard(p, p.near.said) // it sends back what it gets
	p.says(p.near, 300)
	p.near.heard(p, p.near.said)
	p.out.arrived = true
}

// An upload is read so many bytes at a time with a pause.
const (
	uploadRead  = 16 << 10
	uploadPause = 12 * time.Millisecond
)

// upload begins one that goes on until it is stopped, and waits until it is well under
// way.
func (p *play) upload() (stop func()) {
	p.open()
	p.near.listen(64<<10, 0)
	p.far.listen(uploadRead, uploadPause)
	stop = p.near.streams()
	from := 300<<10 + p.IntN(800<<10)
	labtest.Eventually(p, late, func() bool {
		p.far.mu.Lock()
		defer p.far.mu.Unlock()
		return p.far.got > from
	}, "the upload to be under way")
	return stop
}

func uploads(p *play) {
	stop := p.upload()
	p.report()
	stop()
	p.kept(aliveSlow)
}

// uploadsUnasked: no probe gets there. The bytes that are acknowledged tell enough.
func uploadsUnasked(p *play) {
	stop := p.upload()
	bare := p.there()
	bare.MaxLen = 100
	fault := p.drop(bare)
	p.report()
	p.heal(fault) // which may drop the last bytes of what is written
	stop()
	p.kept(aliveSlow)
}

// uploadDies: nothing comes from the peer any more, which goes on reading what it has,
// and would tell.
func uploadDies(p *play) {
	p.upload()
	p.drop([]lab.Match{p.back(), p.both()}[p.IntN(2)])
	p.rest(0, time.Second)
	p.report()
	p.closed(0, deadPath)
}
