// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"fmt"
	"io"
	"net"
)

// maxReply is how much of a reply is read for good manners.
const maxReply = 64 << 10

// talkHTTP is a GET over plain HTTP/1.1. The reply is read to its end, which
// the server was asked to mark by closing: a service that is cut short might
// log the check as an error. A TLS service is not spoken to in its language, but
// most say so in bytes, and that is an answer.
func talkHTTP(q question, userAgent string) talk {
	return func(c net.Conn) error {
		_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: */*\r\nConnection: close\r\n\r\n",
			q.text, q.to, userAgent)
		if err != nil {
			return fmt.Errorf("send GET to %s: %w", q.to, err)
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(c, maxReply)); err != nil {
			return fmt.Errorf("read reply of %s: %w", q.to, err)
		}
		return nil
	}
}
