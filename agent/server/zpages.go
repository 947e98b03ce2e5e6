package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/shoal-project/shoal/agent/host"
)

// Pages for debugging, which every component of v1.36 has (KEP-4827, KEP-4828): a text for
// people, or an object of the group zpagesGroup for who asks for it.
const (
	zpagesGroup = "config.k8s.io"
	zpageName   = "kubelet"
	zpageHead   = "\n" + zpageName + " %s\nWarning: This endpoint is not meant to be machine parseable, has no " +
		"formatting compatibility guarantees and is for debugging purposes only.\n"
)

// About is what /statusz and /flagz tell of the program.
type About struct {
	// Version is the program's, which begins with that of Kubernetes that it is as.
	Version string
	// Flags are those of the command line, with their values or the configuration's.
	Flags map[string]string
}

func (a About) api() string {
	v, err := version.ParseGeneric(a.Version)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
}

type statusz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion"`
	BinaryVersion     string      `json:"binaryVersion"`
	EmulationVersion  string      `json:"emulationVersion,omitempty"`
	Paths             []string    `json:"paths"`
}

type flagz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Flags             map[string]string `json:"flags,omitempty"`
}

// statusz answers how long the program runs, and what there is to look at.
func (s *Server) statusz(paths []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		own, _ := host.Self()
		up := max(0, time.Since(own.Started))
		zpage(w, r, "statusz", func(about metav1.TypeMeta) any {
			return statusz{about, metav1.ObjectMeta{Name: zpageName}, metav1.NewTime(own.Started), int64(up.Seconds()),
				runtime.Version(), s.About.Version, s.About.api(), paths}
		}, func() string {
			seconds := int(up.Seconds())
			return fmt.Sprintf("\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\n"+
				"Emulation version: %s\nPaths: %s\n",
				own.Started.Format(time.UnixDate), seconds/3600, seconds/60%60, seconds%60, runtime.Version(),
				s.About.Version, s.About.api(), strings.Join(paths, " "))
		})
	}
}

func (s *Server) flagz(w http.ResponseWriter, r *http.Request) {
	zpage(w, r, "flagz", func(about metav1.TypeMeta) any {
		return flagz{about, metav1.ObjectMeta{Name: zpageName}, s.About.Flags}
	}, func() string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.About.Flags)) {
			fmt.Fprintf(&b, "%s=%s\n", name, s.About.Flags[name])
		}
		return b.String()
	})
}

// zpage writes an object in the form that the client asks for: the first of those that are known.
func zpage(w http.ResponseWriter, r *http.Request, name string, object func(metav1.TypeMeta) any, text func() string) {
	kind := strings.ToUpper(name[:1]) + name[1:]
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accepted) == "" {
		accepted = "*/*"
	}
	for one := range strings.SplitSeq(accepted, ",") {
		media, with, err := mime.ParseMediaType(one)
		switch {
		case err != nil:
		case media == "text/plain" && with["as"] == "", media == "text/*", media == "*/*":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, zpageHead+"%s", name, text())
			return
		case media == "application/json" && with["as"] == kind && with["g"] == zpagesGroup &&
			(with["v"] == "v1beta1" || with["v"] == "v1alpha1"):
			data, err := json.Marshal(object(metav1.TypeMeta{Kind: kind, APIVersion: zpagesGroup + "/" + with["v"]}))
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			if with["v"] == "v1alpha1" {
				w.Header().Set("Warning", `299 - "This version of the `+name+` endpoint is deprecated. Please use a newer version."`)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(data)
			return
		}
	}
	http.Error(w, fmt.Sprintf("accepted are text/plain and application/json;g=%s;v=v1beta1;as=%s", zpagesGroup, kind),
		http.StatusNotAcceptable)
}
