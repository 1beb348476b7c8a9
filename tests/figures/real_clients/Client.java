// The JDK's HttpClient: `java Client.java URL KEY MODEL IDLE,IDLE`. It prefers HTTP/2, so each request offers it.
// It prints one JSON line: "ok" or the failure, by case.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;
import java.util.stream.Collectors;

public class Client {
  interface Case {
    void run() throws Exception;
  }

  static final HttpClient CLIENT = HttpClient.newHttpClient();
  static String url, key, model;

  static HttpRequest request(String model, String key, String more) {
    String body = "{\"model\":\"" + model + "\",\"max_tokens\":8,\"messages\":[{\"role\":\"user\","
        + "\"content\":\"Say hello.\"}]" + more + "}";
    return HttpRequest.newBuilder(URI.create(url + "/v1/chat/completions"))
        .header("Authorization", "Bearer " + key)
        .header("Content-Type", "application/json")
        .POST(HttpRequest.BodyPublishers.ofString(body))
        .build();
  }

  static HttpResponse<String> send(String model, String key, String more) throws Exception {
    return CLIENT.send(request(model, key, more), HttpResponse.BodyHandlers.ofString());
  }

  static void check(boolean holds, String found) {
    if (!holds) throw new IllegalStateException(found);
  }

  static void chat(String more) throws Exception {
    var response = send(model, key, more);
    check(response.statusCode() == 200 && response.body().contains("\"completion_tokens\""), response.body());
  }

  static void stream() throws Exception {
    var response = CLIENT.send(request(model, key, ",\"stream\":true"), HttpResponse.BodyHandlers.ofLines());
    var lines = response.body().filter(line -> line.startsWith("data: ")).collect(Collectors.toList());
    check(response.statusCode() == 200 && lines.size() > 2, lines.toString());
    check(lines.get(lines.size() - 1).equals("data: [DONE]"), lines.toString());
  }

  static void error() throws Exception {
    var missing = send("no-such-model", key, "");
    check(missing.statusCode() == 404 && missing.body().contains("model_not_found"), missing.body());
    var wrong = send(model, "ssk_wrong", "");
    check(wrong.statusCode() == 401 && wrong.body().contains("invalid_api_key"), wrong.body());
  }

  static void leave() throws Exception {
    var response = CLIENT.send(request(model, key, ",\"stream\":true"), HttpResponse.BodyHandlers.ofInputStream());
    check(response.body().read() >= 0, "no first byte");
    response.body().close();
    chat("");
  }

  static void idle(String seconds) throws Exception {
    Thread.sleep((long) (Double.parseDouble(seconds) * 1000));
    chat("");
    stream();
  }

  static String quoted(String text) {
    var safe = text.length() > 300 ? text.substring(0, 300) : text;
    return "\"" + safe.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ") + "\"";
  }

  public static void main(String[] arguments) throws Exception {
    url = arguments[0];
    key = arguments[1];
    model = arguments[2];
    Map<String, Case> cases = new LinkedHashMap<>();
    cases.put("chat", () -> chat(""));
    cases.put("stream", Client::stream);
    cases.put("error", Client::error);
    cases.put("large body", () -> chat(",\"user\":\"" + "x".repeat(300_000) + "\""));
    cases.put("leave", Client::leave);
    for (String seconds : arguments[3].split(",")) cases.put("idle " + seconds + " s", () -> idle(seconds));
    var found = new StringJoiner(",", "{", "}");
    for (var entry : cases.entrySet()) {
      String outcome = "ok";
      try {
        entry.getValue().run();
      } catch (Exception failure) {
        outcome = failure.toString();
      }
      found.add(quoted(entry.getKey()) + ":" + quoted(outcome));
    }
    System.out.println(found);
  }
}
