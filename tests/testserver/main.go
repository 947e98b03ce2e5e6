// Command testserver is what end-to-end tests run in pods: an admission
// webhook, an aggregated API, and servers and clients of UDP and SCTP.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// group is that of the aggregated API, with one resource, fishes.
const group = "fish.example.com"

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: testserver webhook|api|udp|pause|ask ADDRESS|sctp PORT...|ask-sctp [FLAGS] ADDRESS")
	}
	var err error
	switch os.Args[1] {
	case "webhook":
		err = serveTLS(http.HandlerFunc(review), nil)
	case "api":
		err = serveAPI()
	case "udp":
		err = serveUDP()
	case "pause":
		ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		<-ended.Done()
		return
	case "ask":
		if err = ask(os.Args[len(os.Args)-1]); err == nil {
			return
		}
	case "sctp":
		err = serveSCTP(os.Args[2:])
	case "ask-sctp":
		if err = talkSCTP(os.Args[2:]); err == nil {
			return
		}
	default:
		err = fmt.Errorf("unknown mode %q", os.Args[1])
	}
	log.Fatal(err)
}

// serveTLS serves on 8443 with the certificate in /certs.
func serveTLS(h http.Handler, clients *x509.CertPool) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if clients != nil {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, clients
	}
	s := &http.Server{Addr: ":8443", Handler: h, TLSConfig: config}
	return s.ListenAndServeTLS("/certs/tls.crt", "/certs/tls.key")
}

// review refuses what has the label refuse, and gives the rest the label seen.
func review(w http.ResponseWriter, r *http.Request) {
	var in admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Request == nil {
		http.Error(w, fmt.Sprint("no review: ", err), http.StatusBadRequest)
		return
	}
	var object unstructured.Unstructured
	if err := json.Unmarshal(in.Request.Object.Raw, &object); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := &admissionv1.AdmissionResponse{UID: in.Request.UID, Allowed: true}
	switch {
	case object.GetLabels()["refuse"] != "":
		out.Allowed, out.Result = false, &metav1.Status{Message: "refused by the webhook in a pod",
			Code: http.StatusForbidden}
	case strings.HasSuffix(r.URL.Path, "/mutate"):
		patch := `[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`
		if object.GetLabels() != nil {
			patch = `[{"op":"add","path":"/metadata/labels/seen","value":"yes"}]`
		}
		kind := admissionv1.PatchTypeJSONPatch
		out.Patch, out.PatchType = []byte(patch), &kind
	}
	in.Request, in.Response = nil, out
	reply(w, http.StatusOK, in)
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Print(err)
	}
}

// serveAPI serves the group to those whom the API server's front proxy names;
// the CA of that proxy is in /certs.
func serveAPI() error {
	pem, err := os.ReadFile("/certs/front-proxy-ca.crt")
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		return fmt.Errorf("no certificate in front-proxy-ca.crt")
	}
	version := metav1.GroupVersionForDiscovery{GroupVersion: group + "/v1", Version: "v1"}
	root := "/apis/" + group
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+root, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK,
			metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: group,
				Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
	})
	mux.HandleFunc("GET "+root+"/v1", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK,
			metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
				GroupVersion: group + "/v1",
				APIResources: []metav1.APIResource{
					{Name: "fishes", SingularName: "fish", Namespaced: true, Kind: "Fish", Verbs: metav1.Verbs{"get", "list"}}}})
	})
	mux.HandleFunc("GET "+root+"/v1/namespaces/{namespace}/fishes/{name}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, fish(r.PathValue("namespace"), r.PathValue("name"), r))
	})
	mux.HandleFunc("GET "+root+"/v1/namespaces/{namespace}/fishes", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK,
			map[string]any{"kind": "FishList", "apiVersion": group + "/v1",
				"metadata": map[string]any{"resourceVersion": "1"},
				"items":    []any{fish(r.PathValue("namespace"), "cod", r), fish(r.PathValue("namespace"), "tuna", r)}})
	})
	return serveTLS(mux, clients)
}

func fish(namespace, name string, r *http.Request) map[string]any {
	return map[string]any{"kind": "Fish", "apiVersion": group + "/v1",
		"metadata": map[string]any{"namespace": namespace, "name": name, "uid": namespace + "-" + name},
		"caller":   r.Header.Get("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group")}
}

// ask sends a packet to a UDP server and prints the answer.
func ask(address string) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("asked")); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	fmt.Println(string(buf[:n]))
	return err
}

// serveUDP answers each packet with the host's name and the packet.
func serveUDP() error {
	conn, err := net.ListenPacket("udp", ":5353")
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	for buf := make([]byte, 1500); ; {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo([]byte(name+" "+string(buf[:n])), from); err != nil {
			log.Print(err)
		}
	}
}
