package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	// remoteIndexAge is how long an aggregated server's index of documents is taken
	// for true, and remoteRetry how long one that failed is not asked again.
	remoteIndexAge, remoteRetry = time.Minute, 5 * time.Second
	remoteLimit                 = 5 * time.Second
	maxRemoteIndex              = 1 << 20
)

// remoteOpenAPI knows the OpenAPI v3 documents of aggregated API servers. They are
// asked when somebody asks for documents, and not otherwise.
type remoteOpenAPI struct {
	services          listers.APIServiceLister
	resolve           webhook.ServiceResolver
	certFile, keyFile string        // shown to aggregated servers
	limit             time.Duration // of asking one for its index
	log               *slog.Logger

	mu    sync.Mutex
	known map[types.UID]remoteIndex // by APIService
}

// remoteIndex is what an aggregated server said of its group version.
type remoteIndex struct {
	generation string // of the APIService that it was asked for
	until      time.Time
	url        string // of the document; empty: none
}

// list returns the URLs of the documents by their paths.
func (o *remoteOpenAPI) list(ctx context.Context) (map[string]string, error) {
	services, err := o.services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	old := maps.Clone(o.known)
	o.mu.Unlock()

	var wait sync.WaitGroup
	known, urls := map[types.UID]remoteIndex{}, map[string]string{}
	found := make([]remoteIndex, len(services))
	for i, s := range services {
		if !answers(s) {
			continue
		}
		if k, ok := old[s.UID]; ok && k.generation == s.ResourceVersion && time.Now().Before(k.until) {
			found[i] = k
			continue
		}
		wait.Go(func() { found[i] = o.ask(ctx, s) })
	}
	wait.Wait()
	for i, s := range services {
		if found[i].generation == "" {
			continue
		}
		known[s.UID] = found[i]
		if found[i].url != "" {
			urls[remotePath(s)] = found[i].url
		}
	}
	o.mu.Lock()
	o.known = known
	o.mu.Unlock()
	return urls, nil
}

// of returns the APIService whose server has the document of a path; nil: none.
func (o *remoteOpenAPI) of(path string) *apiregistrationv1.APIService {
	services, err := o.services.List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, s := range services {
		if remotePath(s) == path && s.Spec.Service != nil {
			return s
		}
	}
	return nil
}

func remotePath(s *apiregistrationv1.APIService) string {
	return "apis/" + s.Spec.Group + "/" + s.Spec.Version
}

// answers tells whether an APIService is served by another server that is there.
func answers(s *apiregistrationv1.APIService) bool {
	return s.Spec.Service != nil && helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available)
}

// ask gets the index of an aggregated server.
func (o *remoteOpenAPI) ask(ctx context.Context, s *apiregistrationv1.APIService) remoteIndex {
	found := remoteIndex{generation: s.ResourceVersion, until: time.Now().Add(remoteIndexAge)}
	var err error
	if found.url, err = o.fetch(ctx, s); err != nil {
		o.log.Debug("index of OpenAPI documents not read", "apiservice", s.Name, "err", err)
		found.until = time.Now().Add(remoteRetry)
	}
	return found
}

func (o *remoteOpenAPI) fetch(ctx context.Context, s *apiregistrationv1.APIService) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	base, trip, err := o.server(s, &user.DefaultInfo{Name: "system:aggregator"})
	if err != nil {
		return "", err
	}
	base.Path = "/openapi/v3"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base.String(), nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Accept", "application/json")
	answer, err := trip.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("/openapi/v3: %s", answer.Status)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxRemoteIndex))
	if err != nil {
		return "", err
	}
	return readRemoteIndex(data, remotePath(s))
}

// readRemoteIndex returns the URL of a path's document, which is below that path.
func readRemoteIndex(data []byte, path string) (string, error) {
	var index handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(data, &index); err != nil {
		return "", fmt.Errorf("index of OpenAPI documents: %w", err)
	}
	entry, ok := index.Paths[path]
	if !ok {
		return "", fmt.Errorf("%s is not in the index", path)
	}
	u, err := url.Parse(entry.ServerRelativeURL)
	if err != nil {
		return "", err
	}
	if u.IsAbs() || u.Host != "" || u.Path != "/openapi/v3/"+path {
		return "", fmt.Errorf("%s is at %q, which is no document of it", path, entry.ServerRelativeURL)
	}
	return v3URL(path, u.Query().Get("hash")), nil
}

// server is where an aggregated server answers, and how it is asked for a user.
func (o *remoteOpenAPI) server(s *apiregistrationv1.APIService, u user.Info) (*url.URL, http.RoundTripper, error) {
	port := int32(443)
	if p := s.Spec.Service.Port; p != nil {
		port = *p
	}
	at, err := o.resolve.ResolveEndpoint(s.Spec.Service.Namespace, s.Spec.Service.Name, port)
	if err != nil {
		return nil, nil, err
	}
	var cert, key []byte
	if o.certFile != "" {
		if cert, err = os.ReadFile(o.certFile); err != nil {
			return nil, nil, err
		}
		if key, err = os.ReadFile(o.keyFile); err != nil {
			return nil, nil, err
		}
	}
	trip, err := transport.New(remote.BuildTransportConfig(nil, cert, key, s)) // the same for the same configuration
	if err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: "https", Host: at.Host},
		transport.NewAuthProxyRoundTripper(u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), trip), nil
}

// serve passes a request for a document on to the server that has it.
func (o *remoteOpenAPI) serve(w http.ResponseWriter, r *http.Request, s *apiregistrationv1.APIService) {
	u, ok := request.UserFrom(r.Context())
	if !ok {
		http.Error(w, "missing user", http.StatusInternalServerError)
		return
	}
	if !answers(s) { // as long as it does not, there is no document of it
		w.WriteHeader(http.StatusNotFound)
		return
	}
	base, trip, err := o.server(s, u)
	if err != nil {
		o.log.Debug("aggregated server not reached", "apiservice", s.Name, "err", err)
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(base)
			p.Out.Host = ""
			for name := range p.Out.Header {
				if strings.EqualFold(name, "Authorization") || strings.HasPrefix(name, "X-Remote-") {
					p.Out.Header.Del(name)
				}
			}
		},
		Transport: trip,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			o.log.Debug("OpenAPI document not passed on", "apiservice", s.Name, "err", err)
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		},
	}
	proxy.ServeHTTP(w, r)
}
