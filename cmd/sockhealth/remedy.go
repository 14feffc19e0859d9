// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// What to do where something that the command line names is not there.
const (
	noPolicyRemedy  = "name another with --policy, or write one: docs/policy.md begins with an example"
	noCgroupRemedy  = "make it first, or name another with --cgroup: a directory of the cgroup v2 hierarchy (systemd-cgls shows it)"
	noNetnsRemedy   = "name what ip netns list shows as /run/netns/NAME, or a process's as /proc/PID/ns/net"
	lostNetnsRemedy = "give it the name again (ip netns add), which the agent notices, or start the agent with another --netns"
	noRunDirRemedy  = "name another with --run-dir"
)

// remedied adds a remedy to an error that says that something is not there, or is
// something else.
func remedied(err error, remedy string) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
		return fmt.Errorf("%w [%s]", err, remedy)
	}
	return err
}
