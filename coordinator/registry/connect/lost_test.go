package connect

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sent is a connection on which an agent sent something, and which then breaks.
type sent struct {
	net.Conn
	io.Reader
}

func (s sent) Read(b []byte) (int, error) { return s.Reader.Read(b) }

const upgraded = "HTTP/1.1 101 Switching Protocols\r\nX-Stream-Protocol-Version: v5.channel.k8s.io\r\n\r\n"

// frame is one of SPDY with data.
func frame(stream uint32, data string) string {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, []uint32{stream, uint32(len(data))})
	return b.String() + data
}

func heard(t *testing.T, agent string) string {
	t.Helper()
	out, err := io.ReadAll(&lossTeller{Conn: sent{Reader: strings.NewReader(agent)}})
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return string(out)
}

// lostFrame is what the client is told when the agent did not say how the command ended.
func lostFrame(t *testing.T) string {
	t.Helper()
	status, err := json.Marshal(metav1.Status{Status: metav1.StatusFailure, Message: errLost})
	if err != nil {
		t.Fatal(err)
	}
	return frame(errorStream, string(status))
}

func TestLossTeller(t *testing.T) {
	const old = "HTTP/1.1 101 S\r\nX-Stream-Protocol-Version: channel.k8s.io\r\n\r\n"
	lost, out, ended := lostFrame(t), frame(3, "output"), frame(errorStream, `{"status":"Success"}`)
	huge := frame(3, string(make([]byte, mostFrame+1)))
	for _, tt := range []struct{ name, agent, want string }{
		{"it said how the command ended", upgraded + out + ended, upgraded + out + ended},
		{"it did not", upgraded + out, upgraded + out + lost},
		{"it broke in a frame", upgraded + out + out[:10], upgraded + out + lost},
		{"it broke in the header of a frame", upgraded + out + out[:5], upgraded + out + lost},
		{"it refused", "HTTP/1.1 404 Not Found\r\n\r\nno", "HTTP/1.1 404 Not Found\r\n\r\nno"},
		{"an answer without an end", "HTTP/1.1 101", "HTTP/1.1 101"},
		{"an old protocol, which tells nothing of success", old + out, old + out},
		{"a frame that is too long, and what follows", upgraded + huge + out, upgraded + huge + out},
	} {
		if got := heard(t, tt.agent); got != tt.want {
			t.Errorf("%s: %d bytes are passed on, want %d: %.200q", tt.name, len(got), len(tt.want), got)
		}
	}
}

// FuzzAgentFrames: of whatever an agent sends, what is passed on is the beginning, and then at
// most that it was lost.
func FuzzAgentFrames(f *testing.F) {
	f.Add(upgraded + frame(3, "output") + frame(errorStream, "{}"))
	f.Add(upgraded + frame(3, "output")[:9])
	f.Add(upgraded + "\x00\x00\x00\x03\x00\xff\xff\xff")
	f.Add("HTTP/1.1 200 OK\r\n\r\n")
	f.Fuzz(func(t *testing.T, agent string) {
		got := heard(t, agent)
		whole := strings.TrimSuffix(got, lostFrame(t))
		if !strings.HasPrefix(agent, got) && !strings.HasPrefix(agent, whole) {
			t.Errorf("%q became %q", agent, got)
		}
		if held := len(agent) - len(whole); held > mostFrame+frameHeader {
			t.Errorf("%d bytes are held back", held)
		}
	})
}
