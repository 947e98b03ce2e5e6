package process

import (
	"log"
	"log/slog"
	"strings"
)

// Complaints takes what net/http's server logs. Most of it is what strangers do
// wrong, who could fill a log with that; what is the server's own is a warning.
func Complaints(to *slog.Logger) *log.Logger { return log.New(complaints{to}, "", 0) }

type complaints struct{ log *slog.Logger }

func (c complaints) Write(b []byte) (int, error) {
	text := strings.TrimSpace(string(b))
	if strings.HasPrefix(text, "http: panic serving") || strings.HasPrefix(text, "http: Accept error") {
		c.log.Warn(text)
	} else {
		c.log.Debug(text)
	}
	return len(b), nil
}
