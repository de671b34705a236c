package watchlock.interop

import com.google.gson.Gson
import com.google.gson.JsonObject
import com.google.gson.JsonParser
import java.io.FileDescriptor
import java.io.FileOutputStream
import java.io.PrintStream
import java.time.Instant
import java.time.temporal.ChronoUnit
import java.util.concurrent.Executors

// A server for tests: a request is a line of JSON on stdin, its reply a line on stdout with the same id.
// Replies come as operations end, in any order. The process ends with its stdin.

private val gson = Gson()
private val replies = PrintStream(FileOutputStream(FileDescriptor.out), false, Charsets.UTF_8)

/** One request. What it lacks has the default that the accessor names. */
class Call(private val request: JsonObject) {
    val op: String get() = text("op")
    val name: String get() = text("name")
    val fenced: Boolean get() = request["fenced"]?.asBoolean ?: false

    fun text(key: String, default: String = ""): String = request[key]?.asString ?: default
    fun long(key: String, default: Long): Long = request[key]?.asLong ?: default
    fun texts(key: String): List<String> = request[key]?.asJsonArray?.map { it.asString } ?: emptyList()
    fun client(): Client = Client.named(text("client"))
}

fun main() {
    System.setOut(System.err) // stdout is for replies alone
    Log.install()
    val anyThread = Executors.newCachedThreadPool { Thread(it).apply { isDaemon = true } }
    for (line in generateSequence(::readlnOrNull)) {
        val call = Call(JsonParser.parseString(line).asJsonObject)
        if (call.op == "die") Runtime.getRuntime().halt(137)
        val thread = call.text("thread")
        if (thread.isEmpty() || call.op == "interrupt") {
            anyThread.execute { reply(call) }
            continue
        }
        try {
            call.client().thread(thread).execute { reply(call) }
        } catch (e: Exception) {
            write(call, Instant.now(), 0) { fail(e) }
        }
    }
    Runtime.getRuntime().halt(0)
}

private fun reply(call: Call) {
    val began = System.nanoTime()
    val result = runCatching {
        val operation = operations[call.op] ?: throw IllegalArgumentException("no operation ${call.op}")
        operation(call)
    }
    write(call, Instant.now(), System.nanoTime() - began) {
        result.onSuccess {
            addProperty("ok", true)
            add("value", gson.toJsonTree(if (it == Unit) null else it))
        }.onFailure { fail(it) }
    }
}

private fun JsonObject.fail(e: Throwable) {
    addProperty("ok", false)
    addProperty("error", e.javaClass.name)
    addProperty("message", e.message ?: "")
}

private fun write(call: Call, at: Instant, nanos: Long, fill: JsonObject.() -> Unit) {
    val node = JsonObject()
    node.addProperty("id", call.long("id", 0))
    node.fill()
    node.addProperty("nanos", nanos)
    node.addProperty("at", ChronoUnit.MICROS.between(Instant.EPOCH, at))
    synchronized(replies) {
        replies.println(node.toString())
        replies.flush()
    }
}
