// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Commands of the test binary, which takes the place of the shipped one.
const (
	playFail  = "play-fail"  // says something and fails
	playWait  = "play-wait"  // says that it is there and waits to be ended
	playStage = "play-stage" // a demo with a stage and a process
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case JanitorCommand:
			exit(Janitor(context.Background(), nil))
		case playFail:
			fmt.Fprintln(os.Stderr, "so it begins")
			exit(fmt.Errorf("no such luck"))
		case playWait:
			fmt.Println("here")
			time.Sleep(time.Minute)
			exit(nil)
		case playStage:
			exit(stageForTest())
		}
	}
	goleak.VerifyTestMain(m)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// stageForTest sets up what a demo does, says what there is, and waits.
func stageForTest() error {
	s, err := newStage("/proc/self/exe")
	if err != nil {
		return err
	}
	c, err := s.newCgroup()
	if err != nil {
		return err
	}
	there := make(chan struct{})
	p, err := s.spawner.start(command{
		name: "child", args: []string{playWait}, cgroup: c,
		line: func([]byte) { close(there) },
	})
	if err != nil {
		return err
	}
	<-there // it has nothing more to say that would tell it of our end
	fmt.Printf("%s %s %d %d\n", s.dir, c.Path, p.cmd.Process.Pid, s.janitor.cmd.Process.Pid)
	time.Sleep(time.Minute)
	return nil
}
