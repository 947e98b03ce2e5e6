package logs

import (
	"bytes"
	"encoding/json"
	"io"
)

// line is one of a log in the CRI's format: "TIME STREAM TAG TEXT".
type line struct {
	time, stream, text []byte
	// partial: it goes on in the next line of its stream.
	partial bool
}

// parse takes a line apart; text keeps its end.
func parse(b []byte) (l line, ok bool) {
	var tag, rest []byte
	var ok1, ok2, ok3 bool
	l.time, rest, ok1 = bytes.Cut(b, []byte(" "))
	l.stream, rest, ok2 = bytes.Cut(rest, []byte(" "))
	tag, l.text, ok3 = bytes.Cut(rest, []byte(" "))
	l.partial = len(tag) > 0 && tag[0] == 'P'
	return l, ok1 && ok2 && ok3
}

// tailWindow is how much of a log's end its last lines are looked for in.
const tailWindow = 64 << 10

// Tail returns the last lines of a log, in the CRI's or Docker's JSON format, and
// of them the last bytes; "" when there is none.
func Tail(file File, maxLines, maxBytes int) string {
	f, err := file.open()
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > tailWindow {
		if _, err := f.Seek(-tailWindow, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, tailWindow))
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(lines) > maxLines {
		lines = lines[len(lines)-maxLines:]
	}
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(written(l))
	}
	text := b.Bytes()
	if len(text) > maxBytes {
		text = text[len(text)-maxBytes:]
	}
	return string(text)
}

// written is what the container wrote in one line of its log.
func written(b []byte) string {
	if len(b) > 0 && b[0] == '{' {
		var j struct {
			Log string `json:"log"`
		}
		if json.Unmarshal(b, &j) == nil {
			return j.Log
		}
	}
	l, ok := parse(b)
	switch {
	case !ok:
		return ""
	case l.partial:
		return string(l.text)
	}
	return string(l.text) + "\n"
}
