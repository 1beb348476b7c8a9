// Go's default client with its pool of idle connections: `client URL KEY MODEL IDLE,IDLE`.
// It prints one JSON line: "ok" or the failure, by case.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const atOnce = 4

var url, key, model string

func post(model, key string, more map[string]any) (*http.Response, error) {
	body := map[string]any{
		"model":      model,
		"max_tokens": 8,
		"messages":   []map[string]string{{"role": "user", "content": "Say hello."}},
	}
	for name, value := range more {
		body[name] = value
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(string(data)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(request)
}

func expect(status int, words, model, key string, more map[string]any) error {
	response, err := post(model, key, more)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != status || !strings.Contains(string(data), words) {
		return fmt.Errorf("%d %s", response.StatusCode, data)
	}
	return nil
}

func chat(more map[string]any) error {
	return expect(200, `"completion_tokens"`, model, key, more)
}

func stream() error {
	response, err := post(model, key, map[string]any{"stream": true})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	count, last := 0, ""
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			count, last = count+1, lines.Text()
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if response.StatusCode != 200 || count < 3 || last != "data: [DONE]" {
		return fmt.Errorf("%d, %d events, the last %q", response.StatusCode, count, last)
	}
	return nil
}

func refused() error {
	if err := expect(404, "model_not_found", "no-such-model", key, nil); err != nil {
		return err
	}
	return expect(401, "invalid_api_key", model, "ssk_wrong", nil)
}

func leave() error {
	response, err := post(model, key, map[string]any{"stream": true})
	if err != nil {
		return err
	}
	if _, err := response.Body.Read(make([]byte, 1)); err != nil {
		return err
	}
	response.Body.Close()
	return chat(nil)
}

// The pool holds several connections, which all become idle together.
func together() error {
	var group sync.WaitGroup
	failures := make(chan error, atOnce)
	for range make([]struct{}, atOnce) {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := chat(nil); err != nil {
				failures <- err
			}
		}()
	}
	group.Wait()
	close(failures)
	return <-failures
}

func idle(seconds float64) error {
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	if err := together(); err != nil {
		return err
	}
	return stream()
}

func main() {
	url, key, model = os.Args[1], os.Args[2], os.Args[3]
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = atOnce
	found := map[string]string{}
	run := func(name string, call func() error) {
		found[name] = "ok"
		if err := call(); err != nil {
			found[name] = fmt.Sprintf("%.300s", err.Error())
		}
	}
	run("chat", func() error { return chat(nil) })
	run("stream", stream)
	run("error", refused)
	run("large body", func() error { return chat(map[string]any{"user": strings.Repeat("x", 300_000)}) })
	run("leave", leave)
	if err := together(); err != nil {
		found["chat"] = err.Error()
	}
	for _, text := range strings.Split(os.Args[4], ",") {
		seconds, _ := strconv.ParseFloat(text, 64)
		run("idle "+text+" s", func() error { return idle(seconds) })
	}
	data, _ := json.Marshal(found)
	fmt.Println(string(data))
}
