"""Other scripts than Latin, and databases that cannot hold them: B11, B12. The numbers are in docs/languages.md."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgmem_core import SchemaError
from tests.fix_memory import Face, Maker
from tests.fix_postgres import PostgresServer

# Twenty facts a language, each with a word of two characters by which it is asked for.
JAPANESE = [
    ("毎朝、駅前の喫茶店でコーヒーを飲みます。", "喫茶"), ("姉は大阪の病院で働いています。", "病院"),
    ("来週の金曜日に歯医者の予約があります。", "歯医"), ("犬の名前はポチで、三歳です。", "ポチ"),
    ("アレルギーがあるので、えびは食べられません。", "えび"), ("去年、京都に引っ越しました。", "京都"),
    ("会社まで自転車で通っています。", "会社"), ("息子は小学校の二年生です。", "息子"),
    ("好きな音楽はジャズです。", "音楽"), ("夏休みに北海道へ旅行します。", "旅行"),
    ("父の誕生日は六月三日です。", "誕生"), ("毎週水曜日に水泳を習っています。", "水泳"),
    ("新しいパソコンを買いたいです。", "パソ"), ("家の鍵は引き出しの中です。", "引き"),
    ("冬はスキーに行きます。", "冬は"), ("パスワードは紙に書かないでください。", "パス"),
    ("ベジタリアンの友達がいます。", "友達"), ("数学よりも歴史が得意です。", "歴史"),
    ("部屋の壁を緑色に塗りました。", "緑色"), ("祖母は畑で野菜を育てています。", "野菜"),
]  # fmt: skip
CHINESE = [
    ("我每天早上喝一杯绿茶。", "绿茶"), ("我姐姐在上海的医院当护士。", "护士"), ("下周五我要去看牙医。", "牙医"),
    ("我家的狗叫旺财，今年三岁。", "旺财"), ("我对花生过敏，不能吃。", "花生"), ("去年我们搬到了成都。", "成都"),
    ("我骑自行车上班。", "上班"), ("我儿子在读小学二年级。", "儿子"), ("我最喜欢的音乐是爵士乐。", "爵士"),
    ("暑假我们打算去云南旅游。", "旅游"), ("我爸爸的生日是六月三号。", "生日"), ("我每个星期三去游泳。", "游泳"),
    ("我想买一台新电脑。", "电脑"), ("家里的钥匙在抽屉里。", "钥匙"), ("冬天我们常去滑雪。", "滑雪"),
    ("我的朋友是素食者。", "素食"), ("比起数学，我更擅长历史。", "历史"), ("我把房间的墙刷成了绿色。", "绿色"),
    ("奶奶在院子里种蔬菜。", "蔬菜"), ("我在北川公司做工程师。", "公司"),
]  # fmt: skip
KOREAN = [
    ("저는 매일 아침 녹차를 마십니다.", "녹차"), ("누나는 부산에 있는 병원에서 일해요.", "병원"),
    ("다음 주 금요일에 치과에 가야 합니다.", "치과"), ("강아지 이름은 보리이고 세 살이에요.", "보리"),
    ("새우 알레르기가 있어서 못 먹어요.", "새우"), ("작년에 대전으로 이사했습니다.", "대전"),
    ("회사까지 자전거로 출근합니다.", "회사"), ("아들은 초등학교 이학년입니다.", "아들"),
    ("제가 좋아하는 음악은 재즈예요.", "재즈"), ("여름휴가 때 제주도로 여행을 갑니다.", "여행"),
    ("아버지 생신은 유월 삼일입니다.", "생신"), ("수요일마다 수영을 배웁니다.", "수영"),
    ("새 노트북을 사고 싶어요.", "노트"), ("집 열쇠는 서랍 안에 있어요.", "열쇠"),
    ("겨울에는 스키를 타러 갑니다.", "스키"), ("제 친구는 채식주의자예요.", "친구"),
    ("수학보다 역사를 더 잘해요.", "역사"), ("방의 벽을 초록색으로 칠했어요.", "초록"),
    ("할머니는 텃밭에서 채소를 키우세요.", "채소"), ("저는 북천 상사에서 일합니다.", "상사"),
]  # fmt: skip
THAI = [
    ("ฉันดื่มชาเขียวทุกเช้า", "ชา"), ("พี่สาวทำงานที่โรงพยาบาลในเชียงใหม่", "พี่"), ("หมาของฉันชื่อด่าง อายุสามปี", "หมา"),
    ("ฉันแพ้กุ้ง กินไม่ได้", "กุ้ง"), ("ปีที่แล้วเราย้ายไปขอนแก่น", "แก่น"), ("ฉันขี่จักรยานไปทำงาน", "งาน"),
]  # fmt: skip
SPACED = {
    "german": [("Meine Schwester arbeitet in einem Krankenhaus in München.", "munchen"),
               ("Ich habe zwei Häuser gekauft.", "Haus"), ("Die Straße heißt Grüner Weg.", "STRASSE")],
    "french": [("Ma sœur travaille à l'hôpital.", "hopital"), ("J'ai mangé des crêpes au café.", "crepe"),
               ("Nous avons déménagé à Orléans.", "orleans")],
    "spanish": [("Mañana cumplo años en España.", "manana"), ("Mi hermana trabaja en dos hospitales.", "hospital"),
                ("Me gustan las canciones de Perú.", "canción")],
    "russian": [("Моя сестра работает в больнице.", "больница"), ("Я купил новый ёж для коллекции.", "еж"),
                ("Мы переехали в Казань.", "Казани")],
    "arabic": [("أختي تعمل في المستشفى", "مستشفى"), ("أحب القهوة العربية كل صباح", "قهوة"),
               ("انتقلنا إلى مُرّاكش", "مراكش")],
    "hindi": [("मेरी बहन अस्पताल में काम करती है", "अस्पताल"), ("मुझे हरी चाय पसंद है", "चाय"),
              ("हम पिछले साल जयपुर आए", "जयपुर")],
    "turkish": [("Kız kardeşim hastanede çalışıyor.", "hastane"), ("İstanbul'a taşındık.", "istanbul"),
                ("Her sabah kahve içerim.", "kahve")],
    "simple": [("Tôi thích uống cà phê sữa đá.", "cà phê"), ("Chị tôi sống ở Đà Nẵng.", "da nang"),
               ("Xin chào, 東京", "東京")],
}  # fmt: skip


async def by_word(memory: Face, facts: list[tuple[str, str]]) -> tuple[float, float]:
    """Store the facts and ask for each by its word, words alone; return recall, and the share that came first."""
    await memory.add([fact for fact, _ in facts], user_id="u1")
    found, first = 0, 0
    for fact, word in facts:
        hits = [one.content for one in await memory.search(word, user_id="u1", top_k=5)]
        found += fact in hits
        first += hits[:1] == [fact]
    return found / len(facts), first / len(facts)


@pytest.mark.parametrize(
    ("facts", "recall_wanted", "first_wanted"),
    [(JAPANESE, 1.0, 1.0), (CHINESE, 1.0, 1.0), (KOREAN, 1.0, 1.0), (THAI, 1.0, 1.0)],
    ids=["japanese", "chinese", "korean", "thai"],
)
@pytest.mark.parametrize("language", ["english", "simple"])
async def test_b11_words_of_two_characters_are_found_by_words_alone(
    make_memory: Maker, language: str, facts: list[tuple[str, str]], recall_wanted: float, first_wanted: float
) -> None:
    memory = await make_memory(language=language)
    recall, first = await by_word(memory, facts)
    assert recall >= recall_wanted
    assert first >= first_wanted
    assert await memory.search("飛行", user_id="u1") == []


@pytest.mark.parametrize("language", SPACED)
async def test_b11_each_language_finds_its_inflected_and_unaccented_words(make_memory: Maker, language: str) -> None:
    memory = await make_memory(language=language)
    assert await by_word(memory, SPACED[language]) == (1.0, 1.0)
    assert await memory.search("xylophone", user_id="u1") == []


async def test_b11_the_documented_limits(memory: Face) -> None:
    for text in ("東京都に住んでいます。", "犬を飼っています。", "猫", "日本語だけ"):
        await memory.add(text, user_id="u1")

    async def found(query: str) -> list[str]:
        return [one.content for one in await memory.search(query, user_id="u1")]

    assert await found("犬") == []  # one character inside a sentence: by meaning only
    assert await found("猫") == ["猫"]  # and where it stands alone
    assert await found("京都") == ["東京都に住んでいます。"]  # pairs know no words: Kyoto is in Tokyo-to
    assert await found("ニホンゴ") == []  # another script of the same word


async def test_b11_accents_and_widths_fold_both_ways(memory: Face) -> None:
    for text in ("a café in Zürich", "the cafe of Łódź", "ＡＢＣ１２３ store", "ﾊﾝｶｸ"):
        await memory.add(text, user_id="u1")
    for query in ("café", "cafe", "CAFE\u0301", "Cafés"):
        assert {one.content for one in await memory.search(query, user_id="u1")} == {
            "a café in Zürich",
            "the cafe of Łódź",
        }
    for query, text in (("lodz", "the cafe of Łódź"), ("abc123", "ＡＢＣ１２３ store"), ("ハンカク", "ﾊﾝｶｸ")):
        assert [one.content for one in await memory.search(query, user_id="u1")] == [text]


async def test_b11_the_prompt_finds_them_too(memory: Face) -> None:
    await memory.add([fact for fact, _ in JAPANESE], user_id="u1")
    session = await memory.session.create(user_id="u1")
    context = await session.compile_context("姉の病院はどこ？", floor=None)
    assert "姉は大阪の病院で働いています。" in context.sections["episodic"].items[0].text


# -- B12: encodings --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def narrow_dsn(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[str]:
    """A database that is not encoded in UTF8."""
    name = f"pgmem_narrow_{uuid.uuid4().hex[:12]}"
    provider = sql.SQL("LOCALE_PROVIDER libc" if server.version >= 15 else "")
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING {} {} LOCALE 'C' TEMPLATE template0").format(
                sql.Identifier(name), sql.Literal(request.param), provider
            )
        )
        try:
            yield server.dsn(name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


async def test_b12_a_database_that_is_not_utf8_is_refused_at_setup(
    make_memory: Maker, make_store: Maker, narrow_dsn: str, request: pytest.FixtureRequest
) -> None:
    encoding = request.node.callspec.params["narrow_dsn"]
    for make in (make_memory, make_store):
        with pytest.raises(SchemaError, match=f"pgmem_narrow_[0-9a-f]+' is encoded in {encoding}.*ENCODING 'UTF8'"):
            await make(dsn=narrow_dsn)
    memory = await make_memory(dsn=narrow_dsn, setup=False)
    with pytest.raises(SchemaError, match="is encoded in"):
        await memory.add("Xin chào, 東京", user_id="u1")
    with psycopg.connect(narrow_dsn) as conn:
        assert conn.execute("SELECT to_regnamespace('pgmem')").fetchone() in ((None,), (b"",))


@pytest.mark.parametrize("client", ["LATIN1", "SQL_ASCII", "WIN1252"])
async def test_b12_a_client_encoding_set_elsewhere_changes_nothing(
    make_memory: Maker, dsn: str, client: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    text = "Xin chào, 東京"
    in_dsn = await make_memory(dsn=f"{dsn}&client_encoding={client}")
    await in_dsn.add(text, user_id="u1", metadata={text: text})
    monkeypatch.setenv("PGCLIENTENCODING", client)
    memory = await make_memory()
    [found] = await memory.search("東京", user_id="u1")
    assert (found.content, found.metadata) == (text, {text: text})
    with psycopg.connect(dsn, client_encoding="UTF8") as conn:
        assert conn.execute("SELECT content FROM pgmem.records").fetchall() == [(text,)]
