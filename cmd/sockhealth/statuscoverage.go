// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
)

// coverageRows say how the last checks went, for people.
func coverageRows(s *api.Status, now time.Time) [][]string {
	c := &s.Coverage
	canary := c.Canary
	if c.CanarySent != nil {
		canary += ", " + ago(now, *c.CanarySent)
	}
	return [][]string{{"coverage", covered(s, now)}, {"canary", canary}}
}

// covered sums up the policies.
func covered(s *api.Status, now time.Time) string {
	c := &s.Coverage
	if c.Scanned == nil {
		return "not known yet"
	}
	if c.Revision != s.Policy.Revision {
		return "not known for this policy yet"
	}
	var bounded, expected uint64
	for i := range s.Peers {
		bounded, expected = bounded+s.Peers[i].Bounded, expected+s.Peers[i].Expected
	}
	text := fmt.Sprintf("%s of %d connections bounded as the policy wants, in %d namespaces, %s",
		percent(bounded, expected), expected, c.Namespaces, ago(now, *c.Scanned))
	if c.Error != "" {
		text = "not known in full: " + c.Error + "; else " + text
	}
	return text
}

// percent writes a share, rounded down: 100 % is all of them. "-" is one of none.
func percent(part, whole uint64) string {
	switch {
	case whole == 0:
		return "-"
	case part == whole:
		return "100%"
	}
	return strconv.FormatFloat(float64(part*1000/whole)/10, 'f', 1, 64) + "%"
}

func ago(now, then time.Time) string { return now.Sub(then).Round(time.Second).String() + " ago" }

// unmanagedRows makes the table of sockets that are not bounded.
func unmanagedRows(list []api.UnmanagedSocket, all bool) [][]string {
	head := []string{"NETNS", "LOCAL", "PEER", "POLICY", "DIR", "STATE", "REASON"}
	if all {
		head = append(head, "COOKIE", "UID", "OPTIONS")
	}
	rows := [][]string{head}
	for i := range list {
		s := &list[i]
		direction := s.Direction
		if s.Uncertain {
			direction += "?"
		}
		row := []string{strconv.FormatUint(uint64(s.Netns), 10), s.Local, s.Peer, s.Policy, direction, s.State, s.Reason}
		if all {
			row = append(row, strconv.FormatUint(s.Cookie, 10), strconv.FormatUint(uint64(s.UID), 10), options(s.Options))
		}
		rows = append(rows, row)
	}
	return rows
}
